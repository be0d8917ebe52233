#compdef hpsd hps-bench hps-gen hps-publish
# SPDX-License-Identifier: Apache-2.0
# Options, which zsh reads from --help.
_gnu_generic
