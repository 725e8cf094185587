#!/bin/sh
# The symbols file of libvitrum-c0, from the list that the tests hold the library to: a function a line, and behind it the
# version that brought it where that is not the first.
set -eu
node=$(sed -n 's/^\([A-Z_0-9]*\) *{.*/\1/p' vitrum/c/exports.map)
echo 'libvitrum_c.so.0 libvitrum-c0 #MINVER#'
echo '* Build-Depends-Package: libvitrum-dev'
echo " $node@$node 0.1.0"
sed 's/#.*//; s/@[^ ]*//' tests/c/abi.txt |
  awk -v node="$node" 'NF && $1 != node { print " " $1 "@" node " " (NF > 1 ? $2 : "0.1.0") }'
