/* SPDX-License-Identifier: Apache-2.0
 *
 * Clocks. Tests can switch to a fake clock that advances only when they set it. Any thread.
 */
#ifndef HPS_BASE_CLOCK_H
#define HPS_BASE_CLOCK_H

#include <stdint.h>

uint64_t hps_clock_us(void);      /* monotonic microseconds, never 0 */
uint64_t hps_clock_wall_ms(void); /* Unix milliseconds */

/* Freeze both clocks at now_us (tests). Objects that have read the real clock may then see time go
 * backwards; if any are in use, freeze at hps_clock_us(). */
void hps_clock_fake(uint64_t now_us);
void hps_clock_advance(uint64_t delta_us); /* move the fake clock */
void hps_clock_real(void);                 /* back to the kernel's */

#endif
