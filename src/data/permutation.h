/* A pseudo-random order of as many things as there are, without a list of them. */
#ifndef CUP_DATA_PERMUTATION_H
#define CUP_DATA_PERMUTATION_H

#include <stdint.h>

/* What number `at` of [0, count) becomes, each of [0, count) once: a function of the key, which
 * keeps what is ordered apart, the seed and the epoch. */
int64_t cup__permuted(uint32_t key, uint64_t seed, uint64_t epoch, int64_t at, int64_t count);

#endif
