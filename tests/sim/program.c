/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsd-sim drives simulated devices, which are as HPS_DEVICE says: sim[:NAME=VALUE,...], see
 * hps_sim_config_parse. Without it, and with "sim" alone, nothing happens to them.
 */
#include <stdlib.h>
#include <string.h>

#include "cache/device/sim/sim.h"
#include "server/program.h"

#define MEMORY_BYTES (UINT64_C(1) << 30)

hps_status hps_program_devices(const struct hps_device_driver **out_driver, struct hps_error *err)
{
    static struct hps_sim_driver sim;
    struct hps_device_sim_config config;
    const char *text = getenv("HPS_DEVICE");
    if (text == NULL || text[0] == '\0') {
        text = "sim";
    }
    bool is_sim = strncmp(text, "sim", 3) == 0 && (text[3] == '\0' || text[3] == ':');
    if (!is_sim || strcmp(text, "sim:") == 0) {
        return hps_error_set(
            err, HPS_INVALID,
            "HPS_DEVICE: got \"%.40s\", expected \"sim\" or \"sim:NAME=VALUE,...\"", text);
    }
    hps_status status =
        hps_sim_config_parse("HPS_DEVICE", text[3] == ':' ? text + 4 : "", &config, err);
    if (status == HPS_OK) {
        config.memory_bytes = config.memory_bytes == 0 ? MEMORY_BYTES : config.memory_bytes;
        sim = hps_sim_driver(config);
        *out_driver = &sim.driver;
    }
    return status;
}
