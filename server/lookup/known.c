/* SPDX-License-Identifier: Apache-2.0
 *
 * Appends names to errors until the text is full. See server/lookup/known.h.
 */
#include "server/lookup/known.h"

#include <stdio.h>
#include <string.h>

enum { KNOWN_BYTES = 240 }; /* half the size of an error's text */

struct names {
    const struct hps_grpc_call *call;
    enum hps_access_role role;
    char text[KNOWN_BYTES];
    size_t size;
};

/* False: the list is full. */
static bool add_name(struct names *names, const char *name)
{
    static const char more[] = ", ...";
    size_t space = sizeof(names->text) - names->size;
    int n = snprintf(names->text + names->size, space, "%s%s", names->size > 0 ? ", " : "", name);
    if (n >= 0 && (size_t)n + sizeof(more) <= space) {
        names->size += (size_t)n;
        return true;
    }
    (void)snprintf(names->text + names->size, space, "%s", names->size > 0 ? more : "...");
    return false;
}

static void add_to(struct hps_error *err, const char *what, const struct names *names)
{
    struct hps_error old = *err;
    if (names->text[0] != '\0') {
        hps_ignore(hps_error_set(err, old.status, "%s; %s: %s", old.text, what, names->text));
    }
}

static bool add_model(void *ctx, const char *model)
{
    struct names *names = ctx;
    return !hps_access_sees(names->call, names->role, model) || add_name(names, model);
}

void hps_known_models(struct hps_models *models, const struct hps_grpc_call *call,
                      enum hps_access_role role, struct hps_error *err)
{
    struct names names = {.call = call, .role = role};
    hps_models_names(models, add_model, &names);
    add_to(err, "models here", &names);
}

void hps_known_tables(const struct hps_version *version, struct hps_error *err)
{
    struct names names = {0};
    bool space = true;
    for (uint32_t place = 0; place < version->n_places && space; place++) {
        uint32_t table = hps_version_table_at(version, place);
        space = table == UINT32_MAX || add_name(&names, version->tables[table].name);
    }
    add_to(err, "its tables", &names);
}
