#!/usr/bin/env bash
# release_check.sh [PART...]: is what users get fit for them? Parts: install deb image wheel; by default all of them.
# Each is put where nothing of this tree is (a moved prefix, a fresh Debian, a chroot, fresh virtual environments), used as a
# user would, and must answer for the same photos with the same bits as build/release/vitrum.
# MODEL=DIR and PHOTOS=DIR replace the small ones of the tests; MIRROR is where Debian comes from, by default debootstrap's own;
# PYTHONS are those that the wheel is tried with, by default every one from 3.9 on that has a name of its own here.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
version=$(tools/version.sh)
model=${MODEL:-tests/golden/dialects/timm} photos=${PHOTOS:-tests/golden/images}
work=$root/build/release-check
parts=${*:-install deb image wheel}

say() { echo "release-check: $*"; }
die() { say "$*" >&2; exit 1; }

mkdir -p "$work/expected"
rm -rf "$work/check"
mkdir -p "$work/check/photos"
cp -rL "$model" "$work/check/model"
find "$photos" \( -name '*.jpg' -o -name '*.jpeg' -o -name '*.png' -o -name '*.webp' -o -name '*.JPEG' \) -print0 | sort -z |
  sed -z -n 1,100p | xargs -0 cp -L -t "$work/check/photos"
say "model $model, $(find "$work/check/photos" -type f | wc -l) photos of $photos"

# What every binary is asked, from the folder above check/: each probability of each photo. Photos that no release can read are
# answered alike, too.
question=(classify check/photos --model check/model --top-k 100000 --json --device cpu)
(cd "$work" && "$root/build/release/vitrum" "${question[@]}" >expected/classify.json 2>expected/errors.txt || (($? == 3)))
grep -q probability "$work/expected/classify.json" || die "build/release/vitrum gives no answer: $(cat "$work/expected/errors.txt")"

# same WHO FILE: the answers in FILE are those of the build.
same() {
  cmp -s "$work/expected/classify.json" "$2" || die "$1 answers differently; see $2 and $work/expected/classify.json"
  say "$1: the same bits as the build"
}

check_install() {
  ctest --test-dir build/release -R '^install$' --no-tests=error --output-on-failure >"$work/install.log" || die "see $work/install.log"
  say "install: consumers of a moved prefix compile and run"
}

# ---- Debian packages in a fresh bookworm ----
check_deb() {
  ((EUID == 0)) || die "deb: debootstrap and chroot need root"
  local debian=$work/debian fresh=$work/fresh.tar
  if [[ ! -e $fresh ]]; then
    rm -rf "$debian"
    debootstrap --variant=minbase bookworm "$debian" ${MIRROR:+"$MIRROR"} >"$work/debootstrap.log"
    tar -C "$debian" -cf "$fresh.part" . && mv "$fresh.part" "$fresh"
  fi
  rm -rf "$debian"
  mkdir -p "$debian"
  tar -C "$debian" -xf "$fresh"
  cp /etc/resolv.conf "$debian/etc/resolv.conf"
  cp -r "$work/check" "$debian/check"
  cp build/deb/*.deb examples/classify.c "$debian/check/"
  in_debian() {  # /proc is there as long as the command runs
    unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$debian" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"
  }

  in_debian sh -c 'apt-get update && apt-get install -y --no-install-recommends /check/vitrum_*.deb' >"$work/deb.log" 2>&1 ||
    die "deb: vitrum cannot be installed; see $work/deb.log"
  in_debian vitrum "${question[@]}" >"$work/deb.json" 2>/dev/null || (($? == 3))
  same deb "$work/deb.json"
  [[ $(in_debian vitrum --version) == "vitrum $version" ]] || die "deb: another version"
  in_debian test -f /lib/systemd/system/vitrum-serve.service || die "deb: no unit"

  in_debian apt-get install -y --no-install-recommends man-db gcc libc6-dev pkgconf >>"$work/deb.log" 2>&1
  in_debian sh -c 'apt-get install -y --no-install-recommends /check/libvitrum*.deb' >>"$work/deb.log" 2>&1 ||
    die "deb: libvitrum-dev cannot be installed; see $work/deb.log"
  local remarks
  remarks=$(in_debian sh -c 'for page in vitrum vitrum-train vitrum-serve; do man --warnings $page >/dev/null || echo "no $page"; done' 2>&1)
  [[ -z $remarks ]] || die "deb: manual pages: $remarks"
  in_debian bash -c 'source /usr/share/bash-completion/completions/vitrum
    COMP_LINE="vitrum classi" COMP_POINT=13 COMP_WORDS=(vitrum classi) COMP_CWORD=1
    compopt() { :; }; _vitrum vitrum; [[ ${COMPREPLY[*]} == classify ]]' || die "deb: completion does not answer"
  say "deb: manual pages without a warning, completion answers"

  local photo
  photo=$(cd "$work" && find check/photos -name '*.jp*g' -o -name '*.JPEG' | sort | sed -n 1p)
  in_debian sh -c "cc -std=c99 -Wall -Werror check/classify.c -o check/classify \$(pkg-config --cflags --libs vitrum_c 2>/dev/null || echo -lvitrum_c) &&
    check/classify check/model $photo" >"$work/deb-c.txt" || die "deb: examples/classify.c against libvitrum-dev failed"
  say "deb: a C program compiles against libvitrum-dev and classifies"

  # The CUDA backend belongs into the libraries' own folder: a file there is found, and refused for what it is.
  echo 'int vitrum_cuda_nothing;' | in_debian sh -c 'mkdir -p /usr/lib/x86_64-linux-gnu/vitrum &&
    cc -shared -x c - -o /usr/lib/x86_64-linux-gnu/vitrum/libvitrum_cuda.so'
  in_debian vitrum doctor | grep -q 'belongs to another version' || die "deb: the CUDA backend is not looked for where vitrum-cuda puts it"
  in_debian rm -r /usr/lib/x86_64-linux-gnu/vitrum
  local cuda=
  if compgen -G 'build/deb/vitrum-cuda_*.deb' >/dev/null; then  # made with CUDA=1
    cuda=vitrum-cuda
    in_debian sh -c 'apt-get install -y --no-install-recommends /check/vitrum-cuda_*.deb' >>"$work/deb.log" 2>&1 ||
      die "deb: vitrum-cuda cannot be installed; see $work/deb.log"
    in_debian vitrum doctor | grep -q 'no NVIDIA driver is installed' || die "deb: vitrum-cuda does not say that there is no driver"
    say "deb: vitrum-cuda opens, and says that there is no driver"
  fi
  check_deb_mpi
  in_debian sh -c "apt-get purge -y vitrum libvitrum-dev libvitrum-c0 vitrum-mpi $cuda" >>"$work/deb.log" 2>&1 ||
    die "deb: cannot be removed; see $work/deb.log"
  [[ -z $(in_debian find /usr /etc /lib -name '*vitrum*') ]] || die "deb: files are left behind"
  say "deb: removed without a trace"
}

# Two processes of mpirun, their bytes moved by vitrum-mpi alone, train what one process does.
check_deb_mpi() {
  in_debian sh -c 'apt-get install -y --no-install-recommends openmpi-bin /check/vitrum-mpi_*.deb' >>"$work/deb.log" 2>&1 ||
    die "deb: vitrum-mpi cannot be installed; see $work/deb.log"
  in_debian sh -ec 'mkdir -p check/data/even check/data/odd && n=0
    for photo in $(ls check/photos/*.jp*g check/photos/*.JPEG 2>/dev/null | sed -n 1,16p); do
      n=$((n + 1)); if [ $((n % 2)) = 0 ]; then cp "$photo" check/data/even; else cp "$photo" check/data/odd; fi
    done
    train="vitrum train --model vit_small_cifar --data folder:check/data --set holdout=0.5 --set slices=2 --epochs 1
      --batch-size 2 --threads 1"
    $train --out check/alone
    mpirun="mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2"
    VITRUM_MPI=1 $mpirun $train --out check/together
    cmp check/alone/last/model.safetensors check/together/last/model.safetensors
    ! VITRUM_MPI=1 VITRUM_MPI_LIBRARY=/nowhere $mpirun $train --out check/without' >"$work/deb-mpi.txt" 2>&1 ||
    die "deb: vitrum-mpi; see $work/deb-mpi.txt"
  grep -q 'VITRUM_MPI=1, but libvitrum_mpi.so of rank' "$work/deb-mpi.txt" || die "deb: vitrum-mpi was not asked; see $work/deb-mpi.txt"
  say "deb: two processes of mpirun train to the bits of one, by vitrum-mpi"
}

# ---- the image, its root read-only, its user nobody ----
check_image() {
  ((EUID == 0)) || die "image: chroot needs root"
  local unpacked=$work/image layer
  rm -rf "$unpacked"
  mkdir -p "$unpacked"
  skopeo inspect --raw "oci:build/image/vitrum:$version" >"$work/manifest.json"
  layer=$(sed 's/.*"layers":\[{[^}]*"digest":"sha256:\([0-9a-f]*\)".*/\1/' "$work/manifest.json")
  tar -I zstd -xf "build/image/vitrum/blobs/sha256/$layer" -C "$unpacked"
  # As a container is run: nothing of the root can be written, what it reads is a volume.
  unshare --mount --pid --fork sh -euc "mount --bind '$unpacked' '$unpacked'
    mount --bind '$work/check/model' '$unpacked/models'
    mount -t tmpfs none '$unpacked/tmp'
    mkdir '$unpacked/tmp/photos' && cp -r '$work/check/photos' '$unpacked/tmp/'
    mount -o remount,bind,ro '$unpacked'
    ! touch '$unpacked/written' 2>/dev/null
    exec chroot --userspec=65532:65532 '$unpacked' /usr/bin/vitrum classify tmp/photos --model models --top-k 100000 --json --device cpu" \
    >"$work/image-raw.json" 2>"$work/image-errors.txt" || (($? == 3)) || die "image: $(cat "$work/image-errors.txt")"
  sed 's,"tmp/photos,"check/photos,' "$work/image-raw.json" | sed 's,tmp/photos,check/photos,g' >"$work/image.json"
  same image "$work/image.json"
}

# ---- the wheel, in a fresh virtual environment of every Python there is (PYTHONS) ----
check_wheel() {
  [[ -d python ]] || { say "wheel: skipped, this tree has no Python package"; return; }
  local python environment
  for python in ${PYTHONS:-python3 $(compgen -c python3. | grep -x 'python3\.\(9\|[1-9][0-9]\)' | sort -u)}; do
    "$python" -c 'import venv, ensurepip' 2>/dev/null || continue  # a name without a Python behind it
    environment=$work/venv
    rm -rf "$environment"
    "$python" -m venv "$environment"
    "$environment/bin/pip" install -q --no-index --no-deps build/wheel/dist/vitrum-"$version"-*.whl
    (cd "$work" && env -i PATH=/usr/bin:/bin "$environment/bin/vitrum" "${question[@]}" >wheel.json 2>/dev/null || (($? == 3)))
    same "wheel's command ($python)" "$work/wheel.json"
    (cd "$work" && env -i PATH=/usr/bin:/bin "$environment/bin/python" "$root/tools/check/check_wheel.py" "$version" expected/classify.json) ||
      die "wheel: $python answers differently"
    say "wheel ($python): the same bits as the build"
  done
}

for part in $parts; do check_"$part"; done
say "all passed: $parts"
