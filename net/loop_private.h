/* SPDX-License-Identifier: Apache-2.0
 *
 * The libevent base under a loop, for net/http1.c alone (evhttp needs it).
 */
#ifndef HPS_NET_LOOP_PRIVATE_H
#define HPS_NET_LOOP_PRIVATE_H

#include "net/loop.h"

struct event_base;

struct event_base *hps_loop_event_base(struct hps_loop *loop);

#endif
