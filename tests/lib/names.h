/* SPDX-License-Identifier: Apache-2.0
 *
 * A resolver of the system in the place of libc's, for a whole test program: of names that end in
 * ".hung", and of "localhost" if the test says so, it says nothing until it is let go; "localhost"
 * may be somewhere else first, as it is where it is ::1, too. Other names it passes on. Include it
 * in one file.
 */
#ifndef HPS_TESTS_LIB_NAMES_H
#define HPS_TESTS_LIB_NAMES_H

#include <dlfcn.h>
#include <netdb.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

static atomic_bool names_two;     /* "localhost" is 127.0.0.2, then 127.0.0.1 */
static atomic_bool names_hang;    /* "localhost" hangs */
static sem_t names_go;            /* a post lets one lookup go; sem_init it first */
static atomic_uint names_waiting; /* lookups that wait for that */

static inline bool names_is_hung(const char *host)
{
    size_t size = strlen(host);
    return (size > 5 && strcmp(host + size - 5, ".hung") == 0) ||
           (strcmp(host, "localhost") == 0 && atomic_load(&names_hang));
}

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **out_found)
{
    int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = NULL;
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&next, &symbol, sizeof(symbol));
    if (names_is_hung(host)) {
        atomic_fetch_add(&names_waiting, 1);
        while (sem_wait(&names_go) != 0) {
        }
        atomic_fetch_sub(&names_waiting, 1);
    }
    if (strcmp(host, "localhost") == 0 && atomic_load(&names_two)) {
        int failed = next("127.0.0.2", port, hints, out_found);
        return failed != 0 ? failed : next("127.0.0.1", port, hints, &(*out_found)->ai_next);
    }
    return next(host, port, hints, out_found);
}

#endif
