/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a configuration file: parse, finish, print. Nothing may crash, leak or hang.
 */
#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"
#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hps_config *config = NULL;
    struct hps_notes notes;
    struct hps_error err = {0};
    struct hps_buf buf;
    const struct hps_config_flags flags = {.state_dir = "/var/lib/hpsd"};
    hps_notes_init(&notes);
    hps_buf_init(&buf, 64 * 1024 * 1024);
    hps_status status = hps_config_parse(size == 0 ? "" : (const char *)data, size, "fuzz.json",
                                         &config, &notes, &err);
    if (status == HPS_OK) {
        status = hps_config_finish(config, &flags, &notes, &err);
    }
    if (status == HPS_OK) {
        status = hps_config_print_effective(config, &buf);
    }
    HPS_ASSERT(status == HPS_OK || err.text[0] != '\0' || status == HPS_EXHAUSTED);
    hps_buf_fini(&buf);
    hps_notes_fini(&notes);
    hps_config_free(config);
    return 0;
}
