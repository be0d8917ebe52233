/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsctl completion: a script for the shell, generated from the tables of verbs and options. One
 * thread.
 */
#include <stdio.h>

#include "tools/hpsctl.h"

static void print_options(const struct hps_arg *args)
{
    for (; args != NULL && args->name != NULL; args++) {
        printf(" --%s", args->name);
    }
}

static void print_choices(const char *choices)
{
    for (const char *at = choices; at != NULL && *at != '\0'; at++) {
        (void)fputc(*at == '|' ? ' ' : *at, stdout);
    }
}

int hpsctl_completion(struct hpsctl *ctl)
{
    (void)ctl;
    printf("# bash completion of hpsctl; made by `hpsctl completion bash`\n"
           "_hpsctl()\n{\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    local verb= words= i\n"
           "    local -r globals='");
    print_options(hpsctl_global_args);
    print_options(tool_connect_args);
    printf(" --help --version'\n    local -r verbs=' help");
    for (const struct hpsctl_verb *verb = hpsctl_verbs; verb->command.name != NULL; verb++) {
        printf(" %s", verb->command.name);
    }
    printf("'\n"
           "    COMPREPLY=()\n"
           "    if [[ $word == = ]]; then before=\"=\" word=; fi\n"
           "    case $before in\n"
           "    --from) COMPREPLY=($(compgen -d -- \"$word\")); return ;;\n"
           "    --table) return ;;\n"
           "    =) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n"
           "    --config|--token-file|--tls-ca|--tls-cert|--tls-key)\n"
           "        COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n"
           "    -o|--output) COMPREPLY=($(compgen -W 'table json' -- \"$word\")); return ;;\n"
           "    esac\n"
           "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
           "        if [[ \" $verbs \" == *\" ${COMP_WORDS[i]} \"* ]]; then\n"
           "            verb=${COMP_WORDS[i]}\n            break\n        fi\n    done\n"
           "    case $verb in\n"
           "    '') words=$verbs ;;\n");
    printf("    help) words=\"$verbs\" ;;\n");
    for (const struct hpsctl_verb *verb = hpsctl_verbs; verb->command.name != NULL; verb++) {
        printf("    %s) words='", verb->command.name);
        print_choices(verb->command.choices);
        print_options(verb->command.args);
        printf("' ;;\n");
    }
    printf("    esac\n"
           "    COMPREPLY=($(compgen -W \"$words $globals\" -- \"$word\"))\n"
           "}\ncomplete -F _hpsctl hpsctl\n");
    return TOOL_OK;
}
