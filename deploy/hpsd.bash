# SPDX-License-Identifier: Apache-2.0
# Options, which bash-completion reads from --help.
complete -F _longopt hpsd hps-bench hps-gen hps-publish
