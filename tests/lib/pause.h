/* SPDX-License-Identifier: Apache-2.0
 *
 * A pause while a test waits for another thread, which gets the processor. sched_yield would return
 * at once and use as much CPU time as the rest of the test. In nanosleep, ThreadSanitizer visits
 * all threads. Sanitizer builds are slower and pause longer. Any thread.
 */
#ifndef HPS_TESTS_LIB_PAUSE_H
#define HPS_TESTS_LIB_PAUSE_H

#include <poll.h>
#include <time.h>

#if defined(HPS_TSAN) || defined(__SANITIZE_ADDRESS__)
#define HPS_BRIEF_PAUSE_NS (200 * 1000)
#else
#define HPS_BRIEF_PAUSE_NS (50 * 1000)
#endif

static inline void brief_pause(void)
{
    const struct timespec moment = {.tv_sec = 0, .tv_nsec = HPS_BRIEF_PAUSE_NS};

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
