"""Clients of a server under test: one that means well, many that load it, and those that attack it."""

import random
import threading
import time

from serving import read_answer


class Good:
    """A client that means well, all the while: the longest it had to wait, and what it was told."""

    def __init__(self, server, photo, pause=0.02):
        self.worst, self.statuses, self.times, self.stopped = 0, {}, [], False
        self.server, self.photo, self.pause = server, photo, pause
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stopped:
            start = time.time()
            try:
                status = self.server.classify(self.photo)[0]
            except OSError as e:
                status = type(e).__name__
            took = time.time() - start
            self.times.append(took)
            self.statuses[status] = self.statuses.get(status, 0) + 1
            time.sleep(self.pause)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped = True
        self.thread.join()
        self.worst = max(self.times)


class Load:
    """Threads that ask one after the other on kept connections; `judge(answer)` says what is wrong with one, or nothing."""

    def __init__(self, server, requests, judge, threads=8, stop_at_close=False):
        self.server, self.requests, self.judge, self.stop_at_close = server, requests, judge, stop_at_close
        self.done, self.wrong, self.lost, self.lost_after, self.stopped = 0, [], 0, [], False
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(threads)]

    def run(self, seed):
        pick, s = random.Random(seed), None
        while not self.stopped:
            sent = pick.choice(self.requests)
            try:
                if s is None:
                    s, buffer, used = self.server.connect(), bytearray(), 0
            except OSError:
                if self.stop_at_close:
                    return
                time.sleep(0.01)
                continue
            try:
                s.sendall(sent)
                answer = read_answer(s, buffer=buffer)
            except OSError:
                answer = (0, {}, b"")
            with self.lock:
                if answer[0] == 0:
                    self.lost += 1
                    self.lost_after.append(used)
                elif wrong := self.judge(answer):
                    self.wrong.append(wrong)
                else:
                    self.done += 1
            used += 1
            if answer[0] == 0 or answer[1].get("connection") == "close":
                s.close()
                s = None
                if self.stop_at_close:
                    return
        if s:
            s.close()

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.stopped = True
        for t in self.threads:
            t.join()


def fine(answer):
    return None if answer[0] == 200 else f"{answer[0]} {answer[2][:200]}"


def flood(server, head, piece, total):
    """Sends without end; what was answered, and how many bytes were taken."""
    sent = 0
    with server.connect(5) as s:
        try:
            s.sendall(head)
            while sent < total:
                s.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        return read_answer(s)[0], sent


def slow_clients(server, count, seconds=30):
    """Clients that send a byte a second; how long the last of them stayed."""
    clients = []
    for _ in range(count):
        s = server.connect()
        s.sendall(b"G")
        s.setblocking(False)
        clients.append(s)
    start = time.time()
    while clients and time.time() - start < seconds:
        time.sleep(0.5)
        for s in list(clients):
            try:
                s.send(b"E")
                if s.recv(1) == b"":
                    raise ConnectionError
            except BlockingIOError:
                continue
            except OSError:
                clients.remove(s)
    took = time.time() - start
    for s in clients:
        s.close()
    return took, len(clients)


def silent_clients(server, count, seconds=30):
    start = time.time()
    clients = [server.connect(seconds) for _ in range(count)]
    left = 0
    for s in clients:
        try:
            left += s.recv(1) != b""
        except OSError as e:
            left += isinstance(e, TimeoutError)
        s.close()
    return time.time() - start, left
