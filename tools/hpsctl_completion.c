/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsctl completion: a script for the shell, generated from the tables of verbs and options. That
 * of zsh runs the script of bash. One thread.
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

static void print_choices(const char *choices)
{
    for (const char *at = choices; at != NULL && *at != '\0'; at++) {
        (void)fputc(*at == '|' ? ' ' : *at, stdout);
    }
}

/* Options that take a value, as words of the next position are not arguments of the verb. */
static void print_valued(const struct hps_arg *args)
{
    for (; args != NULL && args->name != NULL; args++) {
        if (args->type != HPS_ARG_FLAG) {
            printf("|--%s", args->name);
        }
    }
}

/* Whether the usage of a verb begins with a MODEL, and a TABLE. */
static const char *names_of(const struct hps_command *command)
{
    return strncmp(command->words, "MODEL TABLE", strlen("MODEL TABLE")) == 0 ? "models tables"
           : strncmp(command->words, "MODEL", strlen("MODEL")) == 0 ||
                   strncmp(command->words, "[MODEL]", strlen("[MODEL]")) == 0
               ? "models"
               : "";
}

/* The function of the shell up to its own arguments: the verb, the number `n` of its words, the
 * model. */
static void print_arguments(void)
{
    printf("# completion of hpsctl; made by `hpsctl completion`\n"
           "_hpsctl_complete()\n{\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    local verb= words= names= model= i n=0 server=() line=() last=-1\n"
           "    local -r globals='");
    print_options(hpsctl_global_args);
    print_options(tool_connect_args);
    printf(" --help --version'\n    local -r verbs=' help");
    for (const struct hpsctl_verb *verb = hpsctl_verbs; verb->command.name != NULL; verb++) {
        printf(" %s", verb->command.name);
    }
    printf(
        "'\n"
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
        "    for ((i = 0; i <= COMP_CWORD; i++)); do # bash splits words at : and =\n"
        "        if [[ $last -ge 0 && ( ${COMP_WORDS[i]} == [:=]* || ${line[last]} == *[:=] ) ]]; "
        "then\n"
        "            line[last]+=${COMP_WORDS[i]}\n"
        "        else\n"
        "            last=$((last + 1)) line[last]=${COMP_WORDS[i]}\n"
        "        fi\n"
        "    done\n"
        "    for ((i = 1; i < last; i++)); do\n"
        "        case ${line[i]} in\n"
        "        --addr) server=(--addr \"${line[i+1]}\"); i=$((i + 1)) ;;\n"
        "        --addr=*) server=(\"${line[i]}\") ;;\n"
        "        -o");
    print_valued(hpsctl_global_args + 1); /* --addr is the first */
    print_valued(tool_connect_args);
    for (const struct hpsctl_verb *verb = hpsctl_verbs; verb->command.name != NULL; verb++) {
        print_valued(verb->command.args);
    }
    printf(") i=$((i + 1)) ;;\n"
           "        -*) ;;\n"
           "        *)\n"
           "            if [[ -z $verb ]]; then verb=${line[i]}; continue; fi\n"
           "            n=$((n + 1))\n"
           "            if [[ $n == 1 ]]; then model=${line[i]}; fi ;;\n"
           "        esac\n"
           "    done\n");
}

/* Of a table, the names in this column that the shell does not expand: compgen -W runs $(...). */
#define NAMES_IN(column)                                                                  \
    "            awk 'NR > 1 && $" column " !~ /[^A-Za-z0-9_.@%%+,\\/-]/ {print $" column \
    "}')\" ;;\n"

/* The rest: the words that may follow. */
static void print_words(void)
{
    printf("    case $verb in\n"
           "    '') words=$verbs ;;\n"
           "    help) words=\"$verbs\" ;;\n");
    for (const struct hpsctl_verb *verb = hpsctl_verbs; verb->command.name != NULL; verb++) {
        printf("    %s) names='%s' words='", verb->command.name, names_of(&verb->command));
        print_choices(verb->command.choices);
        print_options(verb->command.args);
        printf("' ;;\n");
    }
    printf("    esac\n"
           "    if [[ $word != -* ]]; then # names of models and tables, from the server\n"
           "        case $n,$names in\n"
           "        0,models*) words+=\" $(hpsctl models \"${server[@]}\" --timeout 1 2>/dev/null "
           "|\n" NAMES_IN(
               "1") "        1,*tables) words+=\" $(hpsctl tables \"$model\" \"${server[@]}\" "
                    "--timeout 1 "
                    "2>/dev/null |\n" NAMES_IN(
                        "4") "        esac\n"
                             "    fi\n"
                             "    COMPREPLY=($(compgen -W \"$words $globals\" -- \"$word\"))\n"
                             "}\n");
}

int hpsctl_completion(struct hpsctl *ctl)
{
    bool zsh = ctl->choice == 1;

    printf("%s", zsh ? "#compdef hpsctl\n" : "");
    print_arguments();
    print_words();
    printf("%s", zsh ? "autoload -U +X bashcompinit && bashcompinit\n"
                       "complete -F _hpsctl_complete hpsctl\n"
                       "if (( $+compstate )); then _bash_complete -F _hpsctl_complete; fi\n"
                     : "complete -F _hpsctl_complete hpsctl\n");
    return TOOL_OK;
}
