/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as role file. If the file is accepted, its contents must be complete and within the
 * limits. If it is refused, the error must have a text. The file is written by an operator, but it
 * grants rights, so it must not grant more than it states.
 */
#include "base/assert.h"
#include "config/access.h"
#include "tests/fuzz/script.h"

static void check_rule(const struct hps_access_file *file, const struct hps_access_rule *rule)
{
    HPS_ASSERT(rule->n_who > 0 && (rule->may & ~(uint32_t)HPS_ROLES_ALL) == 0 && rule->may != 0);
    for (size_t i = 0; i < rule->n_who; i++) {
        const struct hps_access_name *who = &rule->who[i];
        bool named = who->kind == HPS_ACCESS_CERTIFICATE || who->kind == HPS_ACCESS_TOKEN;
        bool known = who->kind != HPS_ACCESS_TOKEN;
        HPS_ASSERT(named == (who->name != NULL) && (!named || who->name[0] != '\0'));
        for (size_t t = 0; t < file->n_tokens && !known; t++) {
            known = strcmp(file->tokens[t].name, who->name) == 0;
        }
        HPS_ASSERT(known);
    }
    for (size_t i = 0; i < rule->models.n; i++) {
        HPS_ASSERT(rule->models.items[i] != NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hps_access_file file = {0};
    struct hps_error err = {0};

    hps_status status =
        hps_access_file_parse(size > 0 ? (const char *)data : "", size, "fuzz.json", &file, &err);
    if (status != HPS_OK) {
        HPS_ASSERT(err.text[0] != '\0');
        return 0;
    }
    for (size_t i = 0; i < file.n_rules; i++) {
        check_rule(&file, &file.rules[i]);
    }
    for (size_t i = 0; i < file.n_tokens; i++) {
        HPS_ASSERT(file.tokens[i].name != NULL && file.tokens[i].name[0] != '\0');
        for (size_t k = 0; k < i; k++) {
            HPS_ASSERT(strcmp(file.tokens[i].name, file.tokens[k].name) != 0);
        }
    }
    hps_access_file_fini(&file);
    return 0;
}
