/* SPDX-License-Identifier: Apache-2.0
 *
 * Keywords of the list of a snapshot, shared by writer and reader. Private to base/rows.
 */
#ifndef HPS_BASE_ROWS_SNAPSHOT_FORMAT_H
#define HPS_BASE_ROWS_SNAPSHOT_FORMAT_H

#define SNAPSHOT_LIST_NAME   "snapshot"
#define SNAPSHOT_FORMAT_WORD "hpsd-snapshot "
#define SNAPSHOT_FILE_WORD   "file "
#define SNAPSHOT_END_WORD    "end "

enum { SNAPSHOT_LIST_BYTES_MAX = 64 << 20 };

#endif
