/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors of a malformed request or field. Any thread.
 */
#include "server/lookup/decode_internal.h"

#include <inttypes.h>

hps_status decode_malformed(const struct decoder *decoder, const char *message)
{
    return hps_error_set(decoder->err, HPS_INVALID, "malformed %s", message);
}

hps_status decode_too_many_fields(const struct decoder *decoder, const char *message)
{
    return hps_error_set(decoder->err, HPS_INVALID,
                         "%s: more than %d fields that are unknown, empty or set again", message,
                         FIELDS_MAX);
}

hps_status decode_check_enum(const struct decoder *decoder, const char *field, uint64_t value,
                             uint32_t last)
{
    if ((uint32_t)value > last) {
        return hps_error_set(decoder->err, HPS_INVALID, "%s: %" PRId32 " is not one of 0 to %u",
                             field, (int32_t)(uint32_t)value, last);
    }
    return HPS_OK;
}
