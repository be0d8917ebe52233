/* SPDX-License-Identifier: Apache-2.0
 *
 * Clocks. Tests can switch to a fake clock, which changes only by the calls below. Any thread.
 */
#ifndef HPS_BASE_CLOCK_H
#define HPS_BASE_CLOCK_H

#include <stdint.h>

uint64_t hps_clock_us(void);      /* monotonic microseconds, never 0 */
uint64_t hps_clock_cpu_us(void);  /* CPU time of the thread; this is the one that is slow to read */
uint64_t hps_clock_wall_ms(void); /* Unix milliseconds; an operator or NTP may set it back */

/* The forward clock: Unix milliseconds that never go back within the process, for every claim of
 * freshness. It follows the wall clock. If the wall clock is set back, it advances with
 * hps_clock_us, ahead of the wall clock, until the wall clock passes it or the process ends.
 *
 * The difference of two readings is at least the time between them. Compared with a time of another
 * clock (a file, a process that ran before), the age is right or too high, never too low. The
 * reading itself may be too high: give it to others only through hps_clock_wall_of. */
int64_t hps_clock_forward_ms(void);
/* The same moment by the wall clock as it is set now, for stored records and replies: at most
 * forward_ms, and as old by the wall clock as forward_ms is by the forward clock. Returns 0 for 0,
 * which means "not known". */
int64_t hps_clock_wall_of(int64_t forward_ms);

/* For tests: freeze all clocks at now_us (the wall clock at now_us / 1000 ms), as if the process
 * had just started. Objects that have read the real clock may then see time go backwards. To avoid
 * this, freeze at hps_clock_us(). */
void hps_clock_fake(uint64_t now_us);
void hps_clock_advance(uint64_t delta_us);   /* move the fake clocks forwards */
void hps_clock_preempt(uint64_t delta_us);   /* the same, except the CPU time of threads */
void hps_clock_wall_shift(int64_t delta_ms); /* set the fake wall clock forwards, or back if < 0 */
void hps_clock_real(void);                   /* use the kernel's clocks again */

#endif
