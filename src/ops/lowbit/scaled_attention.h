/* Attention of codes in f8e4m3, the parts of its op. */
#ifndef CUP_OPS_LOWBIT_SCALED_ATTENTION_H
#define CUP_OPS_LOWBIT_SCALED_ATTENTION_H

#include "ops/attention/attention.h"

/* The inputs; scales follow q, k and v in this order. */
enum { CUP__CODES_Q, CUP__CODES_K, CUP__CODES_V, CUP__CODES_SCALES };

/* The call as attention of the codes, whose scales are not in it. Its result may not be there. */
cup__attention cup__scaled_attention_of(const cup__call *call);

const char *cup__scaled_attention_wgmma_refuses(const cup__call *call);
cup_status cup__scaled_attention_wgmma(cup__call *call);

#endif
