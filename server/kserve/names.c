/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of models and versions. See server/kserve/names.h.
 */
#include "server/kserve/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int kserve_text_compare(const struct kserve_text *left, const struct kserve_text *right)
{
    if (left->size != right->size) {
        return left->size < right->size ? -1 : 1;
    }
    return left->size == 0 ? 0 : memcmp(left->at, right->at, left->size);
}

bool kserve_take_tables(struct kserve_text *model)
{
    size_t size = strlen(KSERVE_TABLES);
    bool has =
        model->size > size && memcmp(model->at + model->size - size, KSERVE_TABLES, size) == 0;

    model->size -= has ? size : 0;
    return has;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

hps_status kserve_version_read(struct kserve_text text, struct kserve_version *out_version,
                               struct hps_error *err)
{
    bool is_number = text.size > 0;
    int64_t number = 0;

    if (text.size > 1 && text.at[0] == '-' && is_digit(text.at[1])) {
        return hps_error_set(err, HPS_INVALID, "model_version: '%.*s' is below 0",
                             KSERVE_TEXT_ARGS(text));
    }
    for (size_t i = 0; i < text.size; i++) {
        is_number = is_number && is_digit(text.at[i]);
    }
    for (size_t i = 0; is_number && i < text.size; i++) {
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, text.at[i] - '0', &number)) {
            return hps_error_set(err, HPS_INVALID, "model_version: '%.*s' is beyond 2^63",
                                 KSERVE_TEXT_ARGS(text));
        }
    }
    *out_version = (struct kserve_version){.number = number};
    if (number == 0) { /* "0" too: no version has it, and no label is a number */
        out_version->label = text;
    }
    return HPS_OK;
}

void kserve_say_not_found(struct kserve_text model, const struct kserve_version *version,
                          struct hps_error *err)
{
    char number[24];

    if (version == NULL) {
        hps_ignore(hps_error_set(err, HPS_NOT_FOUND,
                                 "Request for unknown model: '%.*s' is not found",
                                 KSERVE_TEXT_ARGS(model)));
        return;
    }
    struct kserve_text text = version->label;
    if (version->number != 0) {
        int size = snprintf(number, sizeof(number), "%" PRId64, version->number);
        text = (struct kserve_text){number, (size_t)size};
    }
    hps_ignore(hps_error_set(err, HPS_NOT_FOUND,
                             "Request for unknown model: '%.*s' version '%.*s' is not found",
                             KSERVE_TEXT_ARGS(model), KSERVE_TEXT_ARGS(text)));
}
