/* SPDX-License-Identifier: Apache-2.0
 *
 * Time. Tests switch to a fake clock that moves only when told. Any thread.
 */
#ifndef HPS_BASE_CLOCK_H
#define HPS_BASE_CLOCK_H

#include <stdint.h>

uint64_t hps_clock_us(void);      /* monotonic microseconds, never 0 */
uint64_t hps_clock_wall_ms(void); /* Unix milliseconds */

void hps_clock_fake(uint64_t now_us);      /* freeze both clocks at now_us (tests) */
void hps_clock_advance(uint64_t delta_us); /* move the fake clock */
void hps_clock_real(void);                 /* back to the kernel's */

#endif
