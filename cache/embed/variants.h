/* SPDX-License-Identifier: Apache-2.0
 *
 * Variants of the kernels of the embedding cache, to be decided by measurements on a device. Each
 * is a compile-time parameter; hpsd runs with the defaults. A parameter changes host and kernels,
 * so a program is compiled with one set of values. tests/gpu/variants.txt lists the sets that are
 * tested and measured: a name, and -D definitions of the parameters below.
 *
 * Once measurements show which value is better, it stays and the parameter is removed.
 */
#ifndef HPS_CACHE_EMBED_VARIANTS_H
#define HPS_CACHE_EMBED_VARIANTS_H

/* Threads of a block of the lookup kernel, a multiple of 128, and the blocks that must fit a
 * multiprocessor at once. 256 x 4 limits a thread to 64 registers: ptxas then issues the loads of
 * four rows as 1 + 3, with a store between. 128 x 7 allows 72 registers and all four loads come
 * first, but 28 warps instead of 32 fit a multiprocessor. Default: 256 and 4. */
#ifndef HPS_EMBED_LOOKUP_THREADS
#define HPS_EMBED_LOOKUP_THREADS 256
#endif
#ifndef HPS_EMBED_LOOKUP_BLOCKS
#define HPS_EMBED_LOOKUP_BLOCKS 4
#endif

/* Rows that are converted. 0: a lane loads, converts and stores the values of one row after
 * another. 1: a lane loads its values of four rows before it converts the first: four times the
 * loads in flight. It needs more registers, so use it with 128 threads and 7 blocks: with 256 and
 * 4 some are spilled. Default: 0. */
#ifndef HPS_EMBED_CONVERT_AHEAD
#define HPS_EMBED_CONVERT_AHEAD 0
#endif

/* Lanes per row, a power of two. 0: the kernels divide by it. 1: they take its logarithm once, and
 * shift. It saves two divisions per tile, of about 20 instructions each, and their registers: with
 * 256 threads and 4 blocks, too, ptxas then issues the loads of four rows together. Default: 0. */
#ifndef HPS_EMBED_LANES_LOG
#define HPS_EMBED_LANES_LOG 0
#endif

/* Tickets, by which the last block knows that all others have ended. 0: a block takes its ticket
 * with acquire and release; the last one raises the flag with a release store, after a
 * sequentially consistent fence. 1: a block takes its ticket with release alone. The last one has a
 * single fence, which acquires what all tickets released: of system scope, before a relaxed store
 * to the flag, or of device scope, before it reads the counts of changes. No other block acquires.
 * Default: 0. */
#ifndef HPS_EMBED_TICKET_RELEASE
#define HPS_EMBED_TICKET_RELEASE 0
#endif

/* Applying changes. 0: a warp loads the spill, then an entry, then the set that the entry's key
 * hashes to, then the row. 1: the host puts the number of the set into the entry, so that a warp
 * loads spill, entry, set and the row's first 512 bytes at once; it also loads the next entry
 * ahead. The load of a row that is not inserted is wasted. Default: 0. */
#ifndef HPS_EMBED_APPLY_TOGETHER
#define HPS_EMBED_APPLY_TOGETHER 0
#endif

/* Stores of applied rows. 0: the second-level cache evicts them first. 1: it keeps them like other
 * data, so that a lookup soon afterwards may find them there. Default: 0. */
#ifndef HPS_EMBED_APPLY_KEPT
#define HPS_EMBED_APPLY_KEPT 0
#endif

/* The four counters of a key in the frequency sketch. 0: one in each of its four rows, at unrelated
 * addresses. 1: in one line of 64 bytes, which has 16 counters of each row: an estimate reads two
 * neighbouring sectors instead of four. Keys of one line share more counters, so estimates are a
 * little less exact. Default: 0. */
#ifndef HPS_EMBED_SKETCH_LINE
#define HPS_EMBED_SKETCH_LINE 0
#endif

/* Loads of the lookup kernel. 0: without hints. 1: the second-level cache evicts lines of sets
 * last, and rows that are copied in units of 16 bytes first: sets take less memory than rows, and
 * each serves eight keys. Default: 0. */
#ifndef HPS_EMBED_CACHE_HINTS
#define HPS_EMBED_CACHE_HINTS 0
#endif

#endif
