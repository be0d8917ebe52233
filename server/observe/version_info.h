/* SPDX-License-Identifier: Apache-2.0
 *
 * What this build is.
 */
#ifndef HPS_SERVER_OBSERVE_VERSION_INFO_H
#define HPS_SERVER_OBSERVE_VERSION_INFO_H

extern const char hps_build_version[];  /* "0.1.0" */
extern const char hps_build_revision[]; /* of the source, or "unknown" */

#endif
