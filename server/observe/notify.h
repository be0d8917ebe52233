/* SPDX-License-Identifier: Apache-2.0
 *
 * Notifications to the service manager (sd_notify). They have no effect if hpsd runs without a
 * service manager, or was built without libsystemd. Main thread.
 */
#ifndef HPS_SERVER_OBSERVE_NOTIFY_H
#define HPS_SERVER_OBSERVE_NOTIFY_H

#include <stdint.h>

void hps_notify_ready(void);
void hps_notify_reloading(void);
void hps_notify_stopping(void);
void hps_notify_status(const char *text); /* one line for `systemctl status` */
void hps_notify_watchdog(void);
/* The longest allowed time between two calls of hps_notify_watchdog, in microseconds. 0: the
 * service manager does not expect them. */
uint64_t hps_notify_watchdog_us(void);

#endif
