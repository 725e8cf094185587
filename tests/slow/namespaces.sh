#!/usr/bin/env bash
# namespaces.sh VITRUM: four processes that see each other over a network only, each in a namespace of its own, train as one does.
# Exit code 77: namespaces cannot be made here.
set -euo pipefail
if [[ ${2:-} != inside ]]; then
  unshare -nm true 2>/dev/null || { echo "skipped: no network namespaces here"; exit 77; }
  command -v ip ss >/dev/null || { echo "skipped: iproute2 is not installed"; exit 77; }
  exec unshare -nm "$0" "$(realpath "$1")" inside
fi
vitrum=$1
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
{ ip link add br0 type bridge && ip link set br0 up; } 2>/dev/null || { echo "skipped: no bridges here"; exit 77; }
for i in 0 1 2 3; do
  ip netns add "n$i"
  ip link add "v$i" type veth peer name eth0 netns "n$i"
  ip link set "v$i" master br0 up
  ip -n "n$i" addr add "10.77.0.$((i + 1))/24" dev eth0
  ip -n "n$i" link set eth0 up
  ip -n "n$i" link set lo up
done

# Twenty images of noise, in MNIST's format.
mkdir "$work/data"
for part in train t10k; do
  { printf '\x00\x00\x08\x03\x00\x00\x00\x14\x00\x00\x00\x1c\x00\x00\x00\x1c'; head -c $((20 * 784)) /dev/urandom; } \
    > "$work/data/$part-images-idx3-ubyte"
  { printf '\x00\x00\x08\x01\x00\x00\x00\x14'; printf '\x00\x01\x02\x03%.0s' 1 2 3 4 5; } > "$work/data/$part-labels-idx1-ubyte"
done
options=(--model vit_mnist --data "mnist:$work/data" --epochs 2 --batch-size 8 --device cpu --threads 1 -q
         --set slices=4 --set precision=f32)
"$vitrum" train "${options[@]}" --out "$work/alone"

export WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500
if RANK=0 ip netns exec n0 "$vitrum" train "${options[@]}" --out "$work/open" 2> "$work/said"; then
  echo "several machines were accepted without a secret"; exit 1
fi
grep -q VITRUM_SECRET "$work/said"
export VITRUM_SECRET=0123456789abcdef
for i in 1 2 3; do
  RANK=$i ip netns exec "n$i" "$vitrum" train "${options[@]}" --out "$work/four" &
done
RANK=0 ip netns exec n0 "$vitrum" train "${options[@]}" --out "$work/four" &
first=$!
# While it waits or trains: nothing listens on all interfaces.
for _ in 1 2 3 4 5 6 7 8 9 10; do
  for i in 0 1 2 3; do
    if ip netns exec "n$i" ss -Hltn | grep -E '0\.0\.0\.0:[0-9]+ +0\.0\.0\.0|\[::\]:|\*:[0-9]+ ' ; then
      echo "something listens on all interfaces"; exit 1
    fi
  done
  sleep 0.1
done
wait "$first"
cmp "$work/alone/last/model.safetensors" "$work/four/last/model.safetensors"
echo "four machines have the bits of one"
