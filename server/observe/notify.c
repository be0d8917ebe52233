/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages of systemd's notification protocol. Main thread.
 */
#include "server/observe/notify.h"

#ifdef HPS_SYSTEMD

#include <inttypes.h>
#include <systemd/sd-daemon.h>
#include <time.h>

void hps_notify_ready(void)
{
    sd_notify(0, "READY=1");
}

void hps_notify_reloading(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
               (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
}

void hps_notify_stopping(void)
{
    sd_notify(0, "STOPPING=1");
}

void hps_notify_status(const char *text)
{
    sd_notifyf(0, "STATUS=%s", text);
}

void hps_notify_watchdog(void)
{
    sd_notify(0, "WATCHDOG=1");
}

uint64_t hps_notify_watchdog_us(void)
{
    uint64_t us = 0;
    return sd_watchdog_enabled(0, &us) > 0 ? us : 0;
}

#else

void hps_notify_ready(void) {}

void hps_notify_reloading(void) {}

void hps_notify_stopping(void) {}

void hps_notify_status(const char *text)
{
    (void)text;
}

void hps_notify_watchdog(void) {}

uint64_t hps_notify_watchdog_us(void)
{
    return 0;
}

#endif
