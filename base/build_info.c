/* SPDX-License-Identifier: Apache-2.0
 *
 * Version and revision, as the build sets them.
 */
#include "base/build_info.h"

#ifndef HPS_VERSION /* for sources built without CMake */
#define HPS_VERSION  "unknown"
#define HPS_REVISION "unknown"
#endif

const char hps_build_version[] = HPS_VERSION;
const char hps_build_revision[] = HPS_REVISION;
