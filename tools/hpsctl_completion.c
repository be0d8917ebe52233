/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsctl completion: a script for the shell, made from the tables of verbs and options. One thread.
 */
#include <stdio.h>
#include <string.h>

#include "tools/hpsctl.h"

static void print_options(const struct hps_arg *args)
{
    for (; args != NULL && args->name != NULL; args++) {
        printf(" --%s", args->name);
    }
}

/* The words behind a verb that are fixed: "get|reset", "[pause|resume]". */
static void print_choices(const char *words)
{
    for (const char *at = words; *at != '\0'; at++) {
        (void)fputc(strchr("[]|", *at) != NULL ? ' ' : *at, stdout);
    }
}

static bool fixed_words(const char *words)
{
    return words[0] != '\0' && strpbrk(words, "ABCDEFGHIJKLMNOPQRSTUVWXYZ ") == NULL;
}

int hpsctl_completion(struct hpsctl *ctl)
{
    static const char *const shells[] = {"bash", NULL};

    if (!hpsctl_word_arg(ctl, ctl->words[0], shells)) {
        return HPSCTL_USAGE;
    }
    printf("# bash completion of hpsctl; made by `hpsctl completion bash`\n"
           "_hpsctl()\n{\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    local verb= words= i\n"
           "    local -r globals='");
    print_options(hpsctl_global_args());
    printf("'\n    local -r verbs='");
    for (const struct hpsctl_verb *verb = hpsctl_verbs; verb->name != NULL; verb++) {
        printf(" %s", verb->name);
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
    for (const struct hpsctl_verb *verb = hpsctl_verbs; verb->name != NULL; verb++) {
        printf("    %s) words='", verb->name);
        if (fixed_words(verb->words)) {
            print_choices(verb->words);
        }
        print_options(verb->args);
        printf("' ;;\n");
    }
    printf("    esac\n"
           "    COMPREPLY=($(compgen -W \"$words $globals\" -- \"$word\"))\n"
           "}\ncomplete -F _hpsctl hpsctl\n");
    return HPSCTL_OK;
}
