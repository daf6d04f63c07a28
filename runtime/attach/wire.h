/* The messages between a daemon and a process that computes a net: C, so that other languages can include it.
 * README.md beside this file says in which order they come.
 *
 * The socket is a Unix socket of type SOCK_SEQPACKET.  Its number is in the environment variable GRADCAST_ATTACH.  A message is one packet.
 * Integers are little-endian.  A text is UTF-8.  Every message begins with its kind. */
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GC_ATTACH_VERSION 2u
#define GC_ATTACH_TEXT_MAX 32768u            /* bytes of text in one message */
#define GC_ATTACH_WHOLE_MAX (16u << 20)      /* bytes of a text of several pieces */
#define GC_ATTACH_TENSORS_MAX 8192u          /* names of HELLO: tensors, running statistics, constants and aliases together */
#define GC_ATTACH_CONSTANTS_MAX (4ull << 30) /* bytes of all constants */
#define GC_ATTACH_AXES_MAX 8u
#define GC_ATTACH_ALIGNMENT 16u /* floats: a tensor begins at a multiple of it */

enum gc_attach_kind {
    /* from the daemon */
    GC_ATTACH_START = 1,   /* gc_attach_text: JSON */
    GC_ATTACH_MEMORY = 2,  /* gc_attach_text: JSON; the last piece with two file descriptors: parameters, block */
    GC_ATTACH_COMPUTE = 3, /* gc_attach_compute */
    /* from the process */
    GC_ATTACH_HELLO = 16,    /* gc_attach_text: JSON */
    GC_ATTACH_READY = 17,    /* gc_attach_text, empty */
    GC_ATTACH_LOSS = 18,     /* gc_attach_loss */
    GC_ATTACH_BUCKET = 19,   /* gc_attach_bucket */
    GC_ATTACH_DONE = 20,     /* gc_attach_text, empty */
    GC_ATTACH_FAIL = 21,     /* gc_attach_text: one line, what is wrong */
    GC_ATTACH_CONSTANTS = 22 /* gc_attach_text: in place of a text bytes of the constants, in pieces */
};

struct gc_attach_text {
    uint32_t kind, more; /* more: another piece of the text follows as a message of the same kind */
    /* at most GC_ATTACH_TEXT_MAX bytes of the text follow, up to the end of the packet */
};

enum gc_attach_mode {
    GC_ATTACH_TRAIN = 0,    /* loss and gradients */
    GC_ATTACH_EVALUATE = 1, /* loss, right ones, classes */
};

struct gc_attach_compute {
    uint32_t kind, mode;
    uint64_t step; /* from 0; of an evaluation 0 */
    uint32_t block, samples;
    uint64_t seed; /* of this block: the same on every node */
};

struct gc_attach_loss {
    uint32_t kind;
    uint32_t right; /* evaluation: samples whose class is the label; UINT32_MAX: the net gives no classes */
    double loss;    /* summed over the samples */
};

struct gc_attach_bucket {
    uint32_t kind, bucket;
};

#ifdef __cplusplus
}
#endif
