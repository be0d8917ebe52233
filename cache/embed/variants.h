/* SPDX-License-Identifier: Apache-2.0
 *
 * Compile-time parameters that select variants of the embedding cache's kernels. hpsd uses the
 * defaults. A parameter affects host code and kernels, so a program is compiled with one value of
 * each. tests/gpu/variants.txt lists the sets of values that are tested and measured: a name, and
 * -D definitions of the parameters below.
 *
 * When measurements on a GPU have shown which value is best, the parameter will be removed.
 */
#ifndef HPS_CACHE_EMBED_VARIANTS_H
#define HPS_CACHE_EMBED_VARIANTS_H

/* HPS_EMBED_LOOKUP_THREADS: threads per block of the lookup kernel, a multiple of 128.
 * HPS_EMBED_LOOKUP_BLOCKS: blocks that must fit on a multiprocessor at the same time. With 256 and
 * 4, a thread has 64 registers. ptxas, the assembler of CUDA, then issues the loads of four rows as
 * 1 + 3, with a store between them. With 128 and 7, a thread has 72 registers, and ptxas issues all
 * four loads first. But only 28 instead of 32 warps fit on a multiprocessor. Default: 256 and 4. */
#ifndef HPS_EMBED_LOOKUP_THREADS
#define HPS_EMBED_LOOKUP_THREADS 256
#endif
#ifndef HPS_EMBED_LOOKUP_BLOCKS
#define HPS_EMBED_LOOKUP_BLOCKS 4
#endif

/* How a lane converts rows. 0: it loads, converts and stores its values of one row, then of the
 * next. 1: it loads its values of four rows before it converts the first, so that four times as
 * many loads are in flight. Value 1 needs more registers: use it with 128 threads and 7 blocks,
 * because with 256 and 4 the compiler spills registers. Default: 0. */
#ifndef HPS_EMBED_CONVERT_AHEAD
#define HPS_EMBED_CONVERT_AHEAD 0
#endif

/* How kernels divide by the number of lanes per row, a power of two. 0: by a division. 1: they
 * compute the logarithm of this number once, and shift. Value 1 saves two divisions per tile, of
 * about 20 instructions each, and their registers. ptxas then issues the loads of four rows
 * together, even with 256 threads and 4 blocks. Default: 0. */
#ifndef HPS_EMBED_LANES_LOG
#define HPS_EMBED_LANES_LOG 0
#endif

/* How the last block of threads synchronizes with the earlier ones. Each block increments a counter
 * when it ends; the counter's value is the ticket of the block. 0: the increment acquires and
 * releases. The last block then stores the flag with release, after a sequentially consistent
 * fence. 1: the increment only releases, and only the last block has an acquiring fence. In a
 * lookup this fence has system scope and comes before a relaxed store of the flag. In an
 * application of changes it has device scope and comes before the block reads the counts. Default:
 * 0. */
#ifndef HPS_EMBED_TICKET_RELEASE
#define HPS_EMBED_TICKET_RELEASE 0
#endif

/* The order of a warp's loads when it applies a change. 0: the spill, then the entry, then
 * the set to which the entry's key hashes, then the row. 1: the host puts the index of the set into
 * the entry. The warp then loads spill, set and the first 512 bytes of the row at the same time,
 * and loads the next entry in advance. If the row is not inserted, its load was useless. Default:
 * 0. */
#ifndef HPS_EMBED_APPLY_TOGETHER
#define HPS_EMBED_APPLY_TOGETHER 0
#endif

/* How long the device's second-level cache keeps rows that were stored by an application of
 * changes. 0: it evicts them first. 1: it keeps them like other data, so that a lookup soon
 * afterwards may find them there. Default: 0. */
#ifndef HPS_EMBED_APPLY_KEPT
#define HPS_EMBED_APPLY_KEPT 0
#endif

/* Where the sketch has the four counters of a key, one in each of its rows. 0: at unrelated
 * addresses. 1: in one line of 64 bytes, which has 16 counters of each row. An estimate then reads
 * two neighbouring sectors (of 32 bytes) instead of four unrelated ones. Keys of one line share
 * more counters, so estimates are a little less exact. Default: 0. */
#ifndef HPS_EMBED_SKETCH_LINE
#define HPS_EMBED_SKETCH_LINE 0
#endif

/* Hints in the loads of the lookup kernel. 0: no hints. 1: the device's second-level cache evicts
 * sets last, and rows that are copied in units of 16 bytes first. Sets are worth keeping because
 * they take less memory than rows, and each has eight keys. Default: 0. */
#ifndef HPS_EMBED_CACHE_HINTS
#define HPS_EMBED_CACHE_HINTS 0
#endif

#endif
