#!/usr/bin/env bash
# build.sh BINARY OUT: an OCI image layout in OUT with the binary and the libraries it needs, and nothing else: no shell, no
# package manager, no user with a name. Root may be read-only; a model comes in by a volume.
set -euo pipefail
binary=$1 out=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
version=$("$root/tools/version.sh")
limit=8000000  # compressed bytes
epoch=$(date -u -d "$(sed -n "s/^## \[$version\] - //p" "$root/CHANGELOG.md")" +%s)

# ---- what is in it ----
tree=$out.root
rm -rf "$tree" "$out"
mkdir -p "$tree"/{usr/bin,etc,tmp,models}
chmod 1777 "$tree/tmp"
install -m 755 "$binary" "$tree/usr/bin/vitrum"
# The loader is asked, not objdump: libraries of libraries too, at the paths where it will look for them.
ldd "$binary" | grep -o '/[^ ]*' | while read -r library; do
  install -D -m 755 "$(readlink -f "$library")" "$tree$library"
done
echo 'nobody:x:65532:65532:nobody:/:/usr/bin/vitrum' >"$tree/etc/passwd"
find "$tree" -exec touch -h -d "@$epoch" {} +

# ---- the image ----
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
container=$(buildah from scratch)
trap 'buildah rm "$container" >/dev/null' EXIT
buildah copy --quiet "$container" "$tree" / >/dev/null
buildah config --entrypoint '["/usr/bin/vitrum"]' --cmd '["--help"]' --user 65532:65532 --port 8080 --workingdir / \
  --stop-signal SIGTERM --label org.opencontainers.image.title=vitrum \
  --label org.opencontainers.image.description="Vision transformers in C++" \
  --label org.opencontainers.image.version="$version" --label org.opencontainers.image.licenses=Apache-2.0 "$container"
buildah commit --quiet --format oci --timestamp "$epoch" "$container" "oci:$out:$version" >/dev/null
# containerd 1.5, Docker 23, Podman and CRI-O read zstd.
"$root/packaging/image/pack.py" "$out"

# ---- is it what it should be? ----
skopeo inspect "oci:$out:$version" >"$out.json"
skopeo copy --quiet "oci:$out:$version" "dir:$out.copy"  # reads every byte, and compares digests
rm -rf "$out.copy"
bytes=$(find "$out/blobs" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
echo "image: $out, version $version, $bytes bytes compressed, $(du -sb "$tree" | cut -f1) unpacked"
((bytes <= limit)) || { echo "image: more than $limit bytes" >&2; exit 1; }
