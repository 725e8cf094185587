// The whole server on a loopback address, spoken to by bytes.
#include "vitrum/serve/server.h"

#include <gmock/gmock.h>

#include <cstring>
#include <map>

#include "tests/serve/server_fixture.h"
#include "vitrum/core/base64.h"
#include "vitrum/core/files.h"
#include "vitrum/serve/routes.h"

namespace vitrum::serve {
namespace {

using testing::HasSubstr;

TEST_F(ServerTest, ClassifiesAPhotoAsClassifyDoes) {
  start();
  const Answer answer = ask(post("/v1/classify?top_k=7", photo()));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json body = answer.parsed();
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["version"].get<std::string>().size(), 12u);
  const json& found = body["results"][0]["predictions"];
  const std::vector<Prediction> want = expected();
  ASSERT_EQ(found.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(found[i]["label"], want[i].label);
    EXPECT_EQ(found[i]["index"], want[i].index);
    EXPECT_EQ(found[i]["probability"].get<float>(), want[i].probability);
  }
}

TEST_F(ServerTest, OneBadImageSpoilsNothingButItsOwnAnswer) {
  start();
  const Answer answer =
      ask(post("/v1/classify", multipart({photo(1), "no image", photo(2)}), kMultipart));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json results = answer.parsed()["results"];
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0]["predictions"][0]["index"], expected(1)[0].index);
  EXPECT_THAT(results[1]["error"].get<std::string>(), HasSubstr("image"));
  EXPECT_EQ(results[2]["predictions"][0]["probability"].get<float>(), expected(2)[0].probability);
  EXPECT_EQ(ask(post("/v1/classify", "no image")).status, 422);
  EXPECT_EQ(ask(post("/v1/classify", "")).status, 400);
}

TEST_F(ServerTest, EmbeddingsInOpenAisForm) {
  start();
  const std::string uri = "data:image/png;base64," + base64(photo());
  const Answer floats = ask(post("/v1/embeddings", json{{"input", uri}, {"model", "tiny"}}.dump()));
  ASSERT_EQ(floats.status, 200) << floats.body;
  const auto vector = floats.parsed()["data"][0]["embedding"].get<std::vector<float>>();
  double length = 0;
  for (const float x : vector) length += static_cast<double>(x * x);
  EXPECT_NEAR(length, 1, 1e-5);
  const Answer packed = ask(post(
      "/v1/embeddings",
      json{{"input", {base64(photo())}}, {"encoding_format", "base64"}, {"model", "tiny"}}.dump()));
  const auto bytes = from_base64(packed.parsed()["data"][0]["embedding"].get<std::string>());
  ASSERT_TRUE(bytes);
  EXPECT_EQ(std::memcmp(bytes->data(), vector.data(), bytes->size()), 0);
  for (const json& bad :
       {json{{"input", "https://example.org/a.jpg"}}, json{{"input", 3}}, json::object(),
        json{{"input", "x"}}, json{{"input", uri}, {"dimensions", 3}}}) {
    const Answer refused = ask(post("/v1/embeddings", bad.dump()));
    EXPECT_EQ(refused.status, 400) << bad;
    EXPECT_TRUE(refused.parsed()["error"].contains("message")) << refused.body;
  }
  EXPECT_EQ(ask(post("/v1/embeddings", json{{"input", uri}, {"model", "other"}}.dump())).status,
            404);
}

TEST_F(ServerTest, OpenInferenceProtocol) {
  start();
  EXPECT_EQ(ask(get("/v2/health/ready")).body, R"({"ready":true})");
  EXPECT_EQ(ask(get("/v2/health/live")).body, R"({"live":true})");
  const json metadata = ask(get("/v2/models/tiny")).parsed();
  EXPECT_EQ(metadata["inputs"][1]["shape"], json::parse("[-1,3,32,32]"));
  const std::string version = metadata["versions"][0];
  EXPECT_EQ(ask(get("/v2/models/tiny/versions/" + version + "/ready")).status, 200);
  EXPECT_EQ(ask(get("/v2/models/tiny/versions/1/ready")).status, 404);
  const json request = {
      {"inputs",
       {{{"name", "image"}, {"datatype", "BYTES"}, {"shape", {1}}, {"data", {base64(photo())}}}}},
      {"outputs",
       {{{"name", "labels"}}, {{"name", "logits"}, {"parameters", {{"classification", 2}}}}}}};
  const Answer answer = ask(post("/v2/models/tiny/infer", request.dump()));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json outputs = answer.parsed()["outputs"];
  EXPECT_EQ(outputs[0]["data"][0], expected()[0].label);
  EXPECT_EQ(outputs[1]["shape"], json::parse("[1,2]"));
  EXPECT_THAT(outputs[1]["data"][0].get<std::string>(), HasSubstr(":" + expected()[0].label));
  EXPECT_EQ(ask(post("/v2/models/tiny/infer", "{}")).status, 400);
  EXPECT_EQ(ask(post("/v2/models/none/infer", "{}")).status, 404);
}

TEST_F(ServerTest, KeepsConnectionsAndPipelinedRequestsInOrder) {
  start();
  Client client(server_->port());
  client.send(post("/v1/classify?top_k=1", photo(3)) + get("/v2/health/live") +
              post("/v1/classify?top_k=1", photo(4)));
  EXPECT_EQ(client.receive().parsed()["results"][0]["predictions"][0]["probability"].get<float>(),
            expected(3)[0].probability);
  EXPECT_EQ(client.receive().body, R"({"live":true})");
  EXPECT_EQ(client.receive().parsed()["results"][0]["predictions"][0]["probability"].get<float>(),
            expected(4)[0].probability);
}

TEST_F(ServerTest, SmuggledRequestsNeverRun) {
  start();
  const std::string second = get("/v2/health/live");
  const std::string post_line = "POST /v1/classify HTTP/1.1\r\nHost: localhost\r\n";
  for (const std::string& request : {
           post_line + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           post_line + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
           post_line + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
           post_line + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
           post_line + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
           post_line + "Transfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n0\r\n\r\n",
           post_line + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\na\r\n0\r\n\r\n",
           post_line + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
           post_line + "Content-Length: 1, 1\r\n\r\na",
           post_line + "Content-Length: +1\r\n\r\na",
           post_line + "Content-Length: -1\r\n\r\n",
           post_line + "Host: other\r\nContent-Length: 1\r\n\r\na",
           std::string("POST /v1/classify HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: "
                       "chunked\r\n\r\n0\r\n\r\n"),
           std::string("GET /v2/health/live HTTP/1.1\r\n\r\n"),
           std::string("GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n X: folded\r\n\r\n"),
           std::string("GET  /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"),
           std::string("GET /v2/health/live HTTP/1.1\nHost: localhost\n\n"),
           std::string("GET /v2/health/live HTTP/2.0\r\nHost: localhost\r\n\r\n"),
           std::string("GET /v2/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
           std::string("GET http://other/ HTTP/1.1\r\nHost: localhost\r\n\r\n"),
       }) {
    Client client(server_->port());
    client.send(request + second);
    const Answer answer = client.receive();
    EXPECT_TRUE(answer.status == 400 || answer.status == 0 || answer.status == 505)
        << answer.status << " for " << request;
    EXPECT_TRUE(client.closed()) << request;
  }
}

TEST_F(ServerTest, LimitsAreAnsweredAndHold) {
  options_.limits.body_bytes = 1000, options_.limits.images = 2,
  options_.limits.header_bytes = 1024;
  start();
  EXPECT_EQ(ask(post("/v1/classify", std::string(1001, 'x'))).status, 413);
  EXPECT_EQ(ask(get("/", "X: " + std::string(2000, 'x') + "\r\n")).status, 431);
  EXPECT_EQ(ask(post("/v1/classify", multipart({"x", "x", "x"}), kMultipart)).status, 413);
  EXPECT_EQ(ask(post("/v1/classify?top_k=0", photo())).status, 400);
  EXPECT_EQ(ask(post("/v1/classify?model=none", photo())).status, 404);
  EXPECT_EQ(ask(get("/nothing")).status, 404);
  const Answer wrong = ask(get("/v1/classify"));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_THAT(wrong.head, HasSubstr("Allow: POST"));
}

TEST_F(ServerTest, PhotosOfTooManyPixelsAreRefused) {
  options_.limits.pixels = 100;
  start();
  const Answer large = ask(post("/v1/classify", photo()));
  EXPECT_THAT(large.body, HasSubstr("more than the limit of 100"));
}

TEST_F(ServerTest, ADeadlineThatPassesIsAnswered) {
  options_.limits.request_seconds = 1e-6;
  start();
  EXPECT_EQ(ask(post("/v1/classify", photo())).status, 504);
}

// A client may have less patience than the server, but not more.
TEST_F(ServerTest, ADeadlineIsNotLengthened) {
  options_.limits.request_seconds = 1e-6;
  start();
  const json request = {
      {"parameters", {{"timeout", 60'000'000}}},
      {"inputs",
       {{{"name", "image"}, {"datatype", "BYTES"}, {"shape", {1}}, {"data", {base64(photo())}}}}}};
  EXPECT_EQ(ask(post("/v2/models/tiny/infer", request.dump())).status, 504);
}

TEST_F(ServerTest, ClientsThatDawdleAreSentAway) {
  options_.limits.header_seconds = 0.2, options_.limits.body_seconds = 0.2;
  start();
  Client silent(server_->port()), header(server_->port()), body(server_->port()),
      kept(server_->port());
  header.send("GET / HT");
  body.send("POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
  kept.send(get("/v2/health/live"));
  EXPECT_EQ(kept.receive().status, 200);
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(header.closed());
  EXPECT_TRUE(body.closed());
  kept.send(get("/v2/health/live"));  // between requests there is more time
  EXPECT_EQ(kept.receive().status, 200);
}

TEST_F(ServerTest, BytesOfAllBodiesAreCounted) {
  options_.limits.in_flight = 1000;
  start();
  Client first(server_->port()), second(server_->port());
  const std::string head = "POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: ";
  first.send(head + "900\r\n\r\n");
  while (server_->context().metrics.body_bytes != 900) std::this_thread::yield();
  second.send(head + "200\r\n\r\n");
  const Answer busy = second.receive();
  EXPECT_EQ(busy.status, 429);
  EXPECT_THAT(busy.head, HasSubstr("Retry-After: "));
  first.send(std::string(900, 'x'));
  EXPECT_EQ(first.receive().status, 422);
}

// One thread has all sockets, and a request is logged where its answer is done with: whoever asks
// after that comes when the room of its body is free, though the connection stays.
TEST_F(ServerTest, AnAnsweredRequestKeepsNoRoom) {
  options_.limits.in_flight = 1000;
  std::promise<void> done;
  logged_ = [&](const LogEntry& e) {
    if (e.id == 1) done.set_value();
  };
  start();
  Client first(server_->port());
  first.send(post("/v1/classify", std::string(900, 'x')));
  EXPECT_EQ(first.receive().status, 422);
  done.get_future().wait();
  EXPECT_EQ(ask(post("/v1/classify", std::string(900, 'x'))).status, 422);
  first.send(get("/v2/health/live"));  // it was there all the time
  EXPECT_EQ(first.receive().status, 200);
}

TEST_F(ServerTest, OneAddressHasSoManyConnections) {
  options_.limits.per_address = 2;
  start();
  Client first(server_->port()), second(server_->port());
  for (Client* client : {&first, &second}) {
    client->send(get("/v2/health/live"));
    EXPECT_EQ(client->receive().status, 200);
  }
  EXPECT_EQ(ask(get("/v2/health/live")).status, 0);
  EXPECT_EQ(server_->context().metrics.refused_connections, 1u);
}

// A client that sends before it reads gets the answer all the same.
TEST_F(ServerTest, RefusedBodiesDoNotCostTheAnswer) {
  options_.limits.body_bytes = 8 << 20;
  start();
  for (int i = 0; i < 20; ++i) {
    Client client(server_->port());
    client.send("POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n" +
                std::string(4000000, 'x'));
    EXPECT_EQ(client.receive().status, 404);
  }
}

TEST_F(ServerTest, AnExpectingClientIsToldToGoOn) {
  start();
  Client client(server_->port());
  const std::string body = photo();
  client.send(
      "POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.receive(true).status, 100);
  client.send(body);
  EXPECT_EQ(client.receive().status, 200);
}

// A line for every route of the table, so that none can be forgotten.
TEST_F(ServerTest, ForeignNamesOriginsAndKeylessClientsAreRefusedOnEveryRoute) {
  write_file_atomic(dir_ / "keys", "# ours\nsecret\n");
  options_.key_file = dir_ / "keys";
  start();
  Router table;
  add_public_routes(table, server_->context());
  const std::string version = server_->context().repository.find("tiny")->version();
  const std::string host = "Host: localhost\r\n", key = "Authorization: Bearer secret\r\n";
  int open = 0;
  for (const Route& route : table.routes()) {
    std::string path = route.pattern;
    for (const auto& [name, value] :
         std::map<std::string, std::string>{{"{model}", "tiny"}, {"{version}", version}})
      if (const size_t at = path.find(name); at != std::string::npos)
        path.replace(at, name.size(), value);
    const std::string line = route.method + " " + path + " HTTP/1.1\r\nContent-Length: 0\r\n";
    const auto status = [&](const std::string& headers) {
      return ask(line + headers + "\r\n").status;
    };
    for (const std::string& shown :
         {std::string(), std::string("Authorization: Bearer wrong\r\n"),
          std::string("Authorization: Basic secret\r\n"), std::string("Authorization: secret\r\n"),
          std::string("Authorization: Bearer secre\r\n"),
          std::string("Authorization: Bearer secrets\r\n"),
          std::string("Authorization: Bearer \r\n"),
          std::string("Authorization: Bearer_secret\r\n"),
          std::string("Authorization: Basic: secret\r\n")})
      if (!route.open) {
        EXPECT_EQ(status(host + shown), 401) << path << " " << shown;
      }
    for (const char* name : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                             "evil.example:80", "[::2]", "localhost@evil.example"})
      EXPECT_EQ(status(key + "Host: " + name + "\r\n"), 403) << path << " " << name;
    for (const char* foreign :
         {"Origin: http://evil.example", "Origin: null", "Origin: http://localhost:1",
          "Origin: http://localhost.evil.example", "Sec-Fetch-Site: cross-site",
          "Sec-Fetch-Site: same-site"})
      EXPECT_EQ(status(key + host + foreign + "\r\n"), 403) << path << " " << foreign;
    const int allowed = status(key + host + "Origin: http://localhost\r\n");
    EXPECT_TRUE(allowed == 200 || (allowed == 400 && route.method == "POST"))
        << path << " " << allowed;
    open += route.open;
    // What needs no key: whether the server lives, and the page. Nothing that takes a photo.
    EXPECT_TRUE(!route.open || route.method == "GET") << path;
  }
  EXPECT_EQ(open, 9);  // health, readiness of models, the page and its parts
}

TEST_F(ServerTest, DrainAnswersWhatWasBegun) {
  start();
  Client client(server_->port());
  const std::string request = post("/v1/classify", photo());
  client.send(request.substr(0, request.size() / 2));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server_->stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  client.send(request.substr(request.size() / 2));
  const Answer answer = client.receive();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, HasSubstr("Connection: close"));
  thread_.join();
}

// The kernel connects clients before the server knows of them.
TEST_F(ServerTest, DrainServesWhoeverIsConnected) {
  start();
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 8; ++i) {
      clients.push_back(std::make_unique<Client>(server_->port()));
      clients.back()->send(get("/v2/health/live"));
    }
    server_->stop();
    for (auto& client : clients) EXPECT_EQ(client->receive().status, 200);
    thread_.join();
    start();
  }
}

TEST_F(ServerTest, ExplainsAndDescribesItself) {
  start();
  const Answer overlay = ask(post("/v1/explain", photo()));
  EXPECT_EQ(overlay.status, 200) << overlay.body;
  EXPECT_EQ(overlay.body.substr(1, 3), "PNG");
  EXPECT_EQ(ask(post("/v1/explain?method=x", photo())).status, 400);
  EXPECT_EQ(ask(post("/v1/explain", "no image")).status, 422);
  EXPECT_TRUE(json::parse(ask(get("/openapi.json")).body).contains("paths"));
  const Answer page = ask(get("/"));
  EXPECT_THAT(page.head, HasSubstr("Content-Security-Policy: default-src 'none'"));
  Client head(server_->port());
  head.send("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(head.receive(true).status, 200);
  head.send(get("/v2/health/live"));  // no body stands before the next answer
  EXPECT_EQ(head.receive().body, R"({"live":true})");
  ask(post("/v1/classify", photo()));
  const std::string metrics = ask(get("/metrics")).body;
  EXPECT_THAT(metrics,
              HasSubstr("vitrum_requests_total{route=\"POST /v1/classify\",status=\"200\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("vitrum_batch_images_count"));
}

TEST_F(ServerTest, ALongLineIsTurnedAwayAtItsEnd) {
  options_.limits.wait_seconds = 60;
  start();
  EXPECT_EQ(ask(post("/v1/classify", photo())).status, 200);  // so that it is known what one takes
  Backlog& backlog = server_->context().backlog;
  std::vector<Backlog::Place> others;
  while (backlog.seconds_to_wait() <= options_.limits.wait_seconds)
    others.push_back(backlog.enter());
  const Answer busy = ask(post("/v1/classify", photo()));
  EXPECT_EQ(busy.status, 429);
  EXPECT_THAT(busy.head, HasSubstr("Retry-After: 61\r\n"));
  EXPECT_EQ(ask(get("/v2/health/ready")).status, 200);  // who only looks does not wait
  EXPECT_EQ(ask(get("/metrics")).status, 200);
  others.clear();
  EXPECT_EQ(ask(post("/v1/classify", photo())).status, 200);
}

TEST_F(ServerTest, WhateverAnAnswerIsItsPlaceIsFree) {
  start();
  Backlog& backlog = server_->context().backlog;
  for (const std::string& request :
       {post("/v1/classify", photo()), post("/v1/classify", "no image"),
        post("/v1/explain", photo()), post("/v1/explain", "no image"),
        post("/v2/models/none/infer", "{")})
    EXPECT_GT(ask(request).status, 0);
  EXPECT_EQ(backlog.seconds_to_wait(), 0);
}

TEST_F(ServerTest, ReplicasAndWorkersAnswerAlike) {
  options_.replicas = 2, options_.workers = 3, options_.max_delay = 0.001;
  start();
  const Answer answer = ask(post("/v1/classify?top_k=7", photo()));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.parsed()["results"][0]["predictions"][0]["probability"].get<float>(),
            expected().front().probability);
}

TEST_F(ServerTest, OverloadIsTurnedAway) {
  options_.limits.wait_seconds = 1;
  start();
  server_->context().metrics.images_waiting = 1'000'000;  // as if so many were under way
  const Answer busy = ask(post("/v1/classify", photo()));
  EXPECT_EQ(busy.status, 429);
  EXPECT_THAT(busy.head, HasSubstr("Retry-After: "));
  server_->context().metrics.images_waiting = 0;
  EXPECT_EQ(ask(post("/v1/classify", photo())).status, 200);
}

}  // namespace
}  // namespace vitrum::serve
