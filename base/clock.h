/* SPDX-License-Identifier: Apache-2.0
 *
 * Clocks. Tests can switch to a fake clock, which changes only by the calls below. Any thread.
 */
#ifndef HPS_BASE_CLOCK_H
#define HPS_BASE_CLOCK_H

#include <stdint.h>

uint64_t hps_clock_us(void);      /* monotonic microseconds, never 0 */
uint64_t hps_clock_wall_ms(void); /* Unix milliseconds */

/* For tests: freeze both clocks at now_us (the wall clock at now_us / 1000 ms). Objects that have
 * read the real clock may then see time go backwards. To avoid this, freeze at hps_clock_us(). */
void hps_clock_fake(uint64_t now_us);
void hps_clock_advance(uint64_t delta_us); /* move the fake clock forwards */
void hps_clock_real(void);                 /* use the kernel's clocks again */

#endif
