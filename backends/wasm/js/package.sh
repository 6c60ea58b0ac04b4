#!/bin/sh
# Writes the files of the npm package to an empty folder:
#
#   backends/wasm/js/package.sh FOLDER VERSION
set -eu
cd "$(dirname "$0")"
folder=$1 version=$2
mkdir -p "$folder"
cp flashkit.js flashkit.d.ts ABI.md README.md ../kernel/kernel.wasm ../../../LICENSE "$folder"
sed "s/\"version\": \"0.0.0\"/\"version\": \"$version\"/" package.json >"$folder/package.json"
chmod 644 "$folder"/*
