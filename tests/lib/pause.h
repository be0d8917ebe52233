/* SPDX-License-Identifier: Apache-2.0
 *
 * Between two looks at what another thread brings about: the processor is that thread's meanwhile.
 * sched_yield would come back at once, over and over, and cost as much as the rest of the test; and
 * each nanosleep has ThreadSanitizer go through all threads. Any thread.
 */
#ifndef HPS_TESTS_LIB_PAUSE_H
#define HPS_TESTS_LIB_PAUSE_H

#include <poll.h>
#include <time.h>

static inline void brief_pause(void)
{
    const struct timespec moment = {.tv_sec = 0, .tv_nsec = 50 * 1000};

    (void)ppoll(NULL, 0, &moment, NULL);
}

/* Until another thread has brought it about. */
#define AWAIT(condition)       \
    do {                       \
        while (!(condition)) { \
            brief_pause();     \
        }                      \
    } while (0)

/* Between two looks at what another process brings about. */
static inline void brief_pause_ms(int ms)
{
    (void)poll(NULL, 0, ms);
}

#endif
