/* SPDX-License-Identifier: Apache-2.0
 *
 * Which version this build is, of which source.
 */
#ifndef HPS_SERVER_OBSERVE_VERSION_INFO_H
#define HPS_SERVER_OBSERVE_VERSION_INFO_H

extern const char hps_build_version[];  /* "0.1.0" */
extern const char hps_build_revision[]; /* of the source, or "unknown" */

#endif
