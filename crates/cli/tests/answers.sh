#!/bin/sh
# Stands for a program that checks its configuration: answers with what lies beside its name.
[ "$1" = --check-config ] && [ -f "$2" ] || exit 9
/bin/cat "$0.out"
exit "$(/bin/cat "$0.code")"
