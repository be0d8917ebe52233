/* SPDX-License-Identifier: Apache-2.0
 *
 * Single flight: look-ups of one version that miss the same key at the same time fetch it once. The
 * first one leads; others wait if no update has come to the key since the leader began, and get the
 * row copied to where they want it when it lands. Whoever leads fetches all its keys before it
 * waits for others, so nobody waits in a circle. Any thread; no lock is held while a store is
 * asked.
 *
 *     join ─┬─▶ LEADS ── fetch ─┬─ land ─▶ done; those that wait get FOUND or ABSENT
 *           │                   └─ leave ─▶ the first that waits LEADS in its place
 *           ├─▶ WAITS ─▶ FOUND, ABSENT or LEADS; or leave
 *           └─▶ ALONE (updated since the leader began): fetch it, tell nobody
 */
#ifndef HPS_CACHE_VERSION_FLIGHT_H
#define HPS_CACHE_VERSION_FLIGHT_H

#include <stdatomic.h>

#include "base/lock.h"
#include "base/status.h"
#include "base/types.h"
#include "cache/version/stamps.h"

struct hps_flight; /* of one version */

enum hps_flight_state {
    HPS_FLIGHT_ALONE,
    HPS_FLIGHT_LEADS,
    HPS_FLIGHT_WAITS,
    HPS_FLIGHT_FOUND,
    HPS_FLIGHT_ABSENT
};

/* One look-up, with any number of keys. On its stack. */
struct hps_flight_trip {
    struct hps_lock lock;
    struct hps_cond changed;
    uint32_t n_waiting;
    uint32_t n_promoted; /* keys that became LEADS after they had waited, until taken */
};

/* One key of a look-up; the look-up's memory, until it has landed or left. */
struct hps_flight_key {
    /* by the look-up, before it joins */
    hps_key key;
    uint8_t *row; /* [row_bytes] where it wants the row */
    uint32_t row_bytes;
    uint32_t table_id;
    uint64_t since; /* hps_stamps_now, when its look-up began to ask */

    _Atomic uint8_t state; /* enum hps_flight_state; the owner may read it at any time */
    uint8_t tier;          /* FOUND: which one had it */
    struct hps_flight_trip *trip;
    struct hps_flight_key *next;    /* LEADS: in its chain; WAITS: the one behind */
    struct hps_flight_key *waiting; /* LEADS: who waits, first come first */
    struct hps_flight_key *last;
};

/* NULL: no memory. */
struct hps_flight *hps_flight_new(void);
void hps_flight_free(struct hps_flight *flight); /* nobody leads; NULL is legal */

void hps_flight_trip_begin(struct hps_flight_trip *trip);
void hps_flight_trip_end(struct hps_flight_trip *trip); /* every key has landed or left */

/* Returns LEADS, WAITS or ALONE. One that waits may have changed since. */
enum hps_flight_state hps_flight_join(struct hps_flight *flight, struct hps_flight_trip *trip,
                                      const struct hps_stamps *stamps, struct hps_flight_key *key);

/* What became of a key that this look-up may lead (if it does not, nothing happens): its row, or
 * NULL if no tier has it. */
void hps_flight_land(struct hps_flight *flight, const struct hps_flight_trip *trip,
                     uint32_t table_id, hps_key key, const uint8_t *row, uint8_t tier);

/* Give up a key in any state. Afterwards nobody writes to its row or to the key. */
void hps_flight_leave(struct hps_flight *flight, struct hps_flight_key *key);

/* Wait until none of the trip's keys waits or one has come to lead, at most max_us. Returns whether
 * that is so. */
bool hps_flight_wait(struct hps_flight_trip *trip, uint32_t max_us);
/* The look-up has seen that n of its keys came to lead. */
void hps_flight_take_promoted(struct hps_flight_trip *trip, uint32_t n);

#endif
