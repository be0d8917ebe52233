/* SPDX-License-Identifier: Apache-2.0
 *
 * Parsing the configuration of simulated devices.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/device/sim/sim.h"

static hps_status parse_setting(const char *text, size_t size, struct hps_device_sim_config *config,
                                const char *name, struct hps_error *err)
{
    const struct {
        const char *name;
        uint64_t max;
    } settings[] = {{"fail", UINT64_MAX - 1}, {"delay_us", 1000000},
                    {"seed", UINT64_MAX - 1}, {"memory", UINT64_C(1) << 40},
                    {"hang", UINT64_MAX - 1}, {"stall_us", UINT64_C(3600) * 1000000}};
    enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]) };
    uint64_t values[N_SETTINGS] = {config->fail_at,      config->delay_us_max, config->seed,
                                   config->memory_bytes, config->hang_at,      config->stall_us};
    char word[48];
    snprintf(word, sizeof(word), "%.*s", (int)(size < sizeof(word) ? size : sizeof(word) - 1),
             text);
    char *equals = strchr(word, '=');
    for (unsigned i = 0; equals != NULL && i < N_SETTINGS; i++) {
        char *end = NULL;
        errno = 0;
        if (strncmp(word, settings[i].name, (size_t)(equals - word)) != 0 ||
            settings[i].name[equals - word] != '\0') {
            continue;
        }
        values[i] = strtoull(equals + 1, &end, 10);
        if (equals[1] < '0' || equals[1] > '9' || *end != '\0' || errno != 0 ||
            values[i] > settings[i].max) {
            break;
        }
        *config = (struct hps_device_sim_config){.fail_at = values[0],
                                                 .delay_us_max = (uint32_t)values[1],
                                                 .seed = values[2],
                                                 .memory_bytes = values[3],
                                                 .hang_at = values[4],
                                                 .stall_us = values[5]};
        return HPS_OK;
    }
    return hps_error_set(err, HPS_INVALID,
                         "%s: got \"%s\", expected fail=N, hang=N, delay_us=N, seed=N, stall_us=N "
                         "or memory=BYTES",
                         name, word);
}

hps_status hps_sim_config_parse(const char *name, const char *text,
                                struct hps_device_sim_config *out_config, struct hps_error *err)
{
    struct hps_device_sim_config config = {0};
    hps_status status = HPS_OK;
    const char *at = text[0] != '\0' ? text : NULL;
    while (at != NULL && status == HPS_OK) {
        size_t size = strcspn(at, ",");
        status = parse_setting(at, size, &config, name, err);
        at = at[size] == ',' ? at + size + 1 : NULL;
    }
    if (status == HPS_OK) {
        *out_config = config;
    }
    return status;
}
