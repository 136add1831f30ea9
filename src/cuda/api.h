/* The driver's types, declared by us. */
#ifndef CUP_CUDA_API_H
#define CUP_CUDA_API_H

typedef struct CUstream_st *CUstream;

#endif
