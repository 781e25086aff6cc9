#!/bin/sh
# Chromium for the tests of pages, where it is missing and can be installed: by root, with apt-get, in a few minutes at most.
# Without it these tests are skipped, so whatever happens here is no error.
longest=${CHROMIUM_SECONDS:-120} # for each of the three steps

without() {
    echo "Chromium is not installed ($1): the tests of pages are skipped"
    exit 0
}
apt() {
    timeout -k 5 "$longest" apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15 \
        -o DPkg::Lock::Timeout=30 "$@" </dev/null >/dev/null 2>&1
}

for name in chromium chromium-browser google-chrome chrome; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
command -v apt-get >/dev/null 2>&1 && command -v timeout >/dev/null 2>&1 || without "there is no apt-get here"
[ "$(id -u)" = 0 ] || without "that takes root: apt-get install chromium"
echo "Installing Chromium for the tests of pages"
export DEBIAN_FRONTEND=noninteractive
apt update # if that fails, what is known already may do
apt install -y --no-install-recommends --download-only chromium || without "it cannot be downloaded"
apt install -y --no-install-recommends chromium || without "apt-get cannot install it"
