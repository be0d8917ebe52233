#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# man.sh BIN OUT: man pages from the text of --help, which the programs print from their tables of options.
set -eu
bin=$1 out=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
for program in hpsd hpsctl hps-bench hps-gen hps-publish; do
    # help2man runs a program of this name, and knows the titles of GNU's programs.
    cat >"$work/$program" <<END
#!/bin/sh
"$(realpath "$bin")/$program" "\$@" | sed -E '/^cuda /d; s/^ {7}(hps)/  or:  \\1/; s/^(usage|options):/\\u\\1:/; s/^(example|signals|exit codes):/*\\u\\1*/'
END
    chmod +x "$work/$program"
    summary=$("$bin/$program" --help | sed -n '/^$/{n;p;q}' | sed 's/\.$//')
    section=1
    [ "$program" = hpsd ] && section=8
    printf '[see also]\nThe documentation is in docs/ of the source.\n' >"$work/more"
    if [ "$program" = hpsctl ]; then
        printf '[verbs]\n' >>"$work/more"
        "$bin/hpsctl" help | sed -n '/^verbs/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' | while read -r verb; do
            printf '.SS %s\n.nf\n' "$verb"
            "$bin/hpsctl" help "$verb" | sed '/^options of every verb/,/^$/d; /^exit codes/,$d; s/\\/\\e/g; s/^\([.'\'']\)/\\\&\1/'
            printf '.fi\n'
        done >>"$work/more"
    fi
    help2man --no-info --section "$section" --name "$summary" --include "$work/more" --output "$out/$program.$section" "$work/$program"
done
