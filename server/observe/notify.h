/* SPDX-License-Identifier: Apache-2.0
 *
 * Notifications to the service manager (sd_notify). No effect without one, or in a build without
 * libsystemd. Main thread.
 */
#ifndef HPS_SERVER_OBSERVE_NOTIFY_H
#define HPS_SERVER_OBSERVE_NOTIFY_H

#include <stdint.h>

void hps_notify_ready(void);
void hps_notify_reloading(void);
void hps_notify_stopping(void);
void hps_notify_status(const char *text); /* one line for `systemctl status` */
void hps_notify_watchdog(void);
uint64_t hps_notify_watchdog_us(void); /* the expected interval; 0: no watchdog */

#endif
