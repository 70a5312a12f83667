#!/bin/sh
# What this project is compared with, each in an environment of its own under build/peers (several gigabytes).
set -e
cd "$(dirname "$0")/.."
make_environment() {
    name=$1
    shift
    [ -e "build/peers/$name/.installed" ] && return
    "${PYTHON:-python3}" -m venv "build/peers/$name"
    "build/peers/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    touch "build/peers/$name/.installed"
}
make_environment transformers --constraint constraints.txt torch transformers numpy
make_environment ctranslate2 ctranslate2 numpy
make_environment yoyodyne --constraint constraints.txt yoyodyne
# It imports neither of these, and built for another device than torch they stop the import of what it does.
build/peers/yoyodyne/bin/python -m pip uninstall --quiet --quiet --yes torchvision torchaudio
