/* SPDX-License-Identifier: Apache-2.0
 *
 * What one identity uses, over all of its connections and all loops, against the limits of its
 * rules: requests per second, bytes of replies in flight. Any thread; no locks where calls pass.
 */
#ifndef HPS_SERVER_ACCESS_ACCOUNT_H
#define HPS_SERVER_ACCESS_ACCOUNT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct hps_accounts; /* all of them, by the name of the identity */
struct hps_account;

struct hps_accounts *hps_accounts_new(void);           /* NULL: no memory */
void hps_accounts_free(struct hps_accounts *accounts); /* none may be left */

/* The account of `who`, made if need be. NULL: no memory. owner: the caller, hps_account_unref */
struct hps_account *hps_account_get(struct hps_accounts *accounts, const char *who);
void hps_account_unref(struct hps_account *account); /* NULL is legal */

/* One more request now. Bursts of one second are let through. False: over the limit, and
 * *out_retry_us says when the next one may come.
 *
 * unit    requests_per_s > 0
 */
bool hps_account_take(struct hps_account *account, uint32_t requests_per_s, uint64_t now_us,
                      uint64_t *out_retry_us);
/* Bytes of a reply that is to be in flight; what is alone is let through, whatever its size. False:
 * over the limit, nothing is charged. */
bool hps_account_charge(struct hps_account *account, uint64_t limit_bytes, uint64_t bytes);
void hps_account_discharge(struct hps_account *account, uint64_t bytes);

#endif
