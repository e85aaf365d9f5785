#!/bin/sh
# The names that a man page documents, from its NAME section, one a line.
#     man-names.sh PAGE
set -eu
sed -n '/^\.SH NAME/{n;s/ \\- .*//;s/\\-/-/g;s/, */\n/g;p}' "$1"
