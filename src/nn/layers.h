/* What all layers do when they are made and called. */
#ifndef CUP_NN_LAYERS_H
#define CUP_NN_LAYERS_H

#include "cupola/layers.h"
#include "nn/parameters.h"

/* Clears the layer's struct and sets what it begins with. Fails without a list and without a
 * struct; a list that could not be made is none. */
cup_status cup__layer_begin(void *layer, size_t bytes, cup_parameters *list,
                            cup_tensor *(*call)(const cup_layer *, cup_tensor *));

/* Clears the struct again where something failed, so that the layer cannot be called in part. */
cup_status cup__layer_end(void *layer, size_t bytes);

/* Fails unless the size is at least 1 and can be doubled. */
cup_status cup__layer_size(cup_parameters *list, const char *what, int64_t size);

/* The context to compute in; NULL where there is no input, or a layer that was never made, which
 * the input's context says. */
cup_context *cup__layer_context(const cup_layer *layer, cup_tensor *x);

/* Defines call_NAME, by which a sequence calls cup_NAME_layer_call. */
#define CUP__LAYER_CALL(name)                                                                      \
    static cup_tensor *call_##name(const cup_layer *layer, cup_tensor *x)                          \
    {                                                                                              \
        return cup_##name##_layer_call((const cup_##name##_layer *)(const void *)layer, x);        \
    }

#endif
