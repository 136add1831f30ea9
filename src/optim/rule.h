/* The rule of an optimizer, said once for the specification, the CPU and the device.
 *
 *   CUP__RULE(name, states, (further fields of its cup__update), statements)
 *
 * makes `name_update` of statements that change `value` by the gradient `g`, which is scaled
 * already, the states `first` and `second`, of which there are STATES, and the numbers
 * n.corrected, n.root, n.rate, n.decay, n.a[i], the op's attributes, and n.rest[i], 1 - n.a[i].
 * All are `real`: double in the specification, float on the CPU, on a device by the dtype. */
#ifndef CUP_OPTIM_RULE_H
#define CUP_OPTIM_RULE_H

#include <tgmath.h>

#include "base/wide.h"
#include "dispatch/attributes.h"
#include "optim/update.h"

#define CUP__RULE_F64(name, most, ...)                                                             \
    static double name##_f64(double value, double g, double *states, int STATES,                   \
                             const cup__step *given)                                               \
    {                                                                                              \
        typedef double real;                                                                       \
        const cup__step n = *given;                                                                \
        real first = states[0], second = states[1];                                                \
        (void)n, (void)first, (void)second, (void)STATES;                                          \
        __VA_ARGS__                                                                                \
        states[0] = first;                                                                         \
        states[1] = second;                                                                        \
        return value;                                                                              \
    }

/* A loop for each number of states, so that each can be made into vectors. */
#define CUP__RULE_LOOP(states, ...)                                                                \
    for (int64_t i = 0; i < count; i++) {                                                          \
        enum { STATES = states };                                                                  \
        real value = values[i], g = gradients[i] * n.gradient;                                     \
        real first = STATES > 0 ? firsts[i] : 0, second = STATES > 1 ? seconds[i] : 0;             \
        (void)g, (void)first, (void)second;                                                        \
        __VA_ARGS__                                                                                \
        values[i] = value;                                                                         \
        if (STATES > 0)                                                                            \
            firsts[i] = first;                                                                     \
        if (STATES > 1)                                                                            \
            seconds[i] = second;                                                                   \
    }
#define CUP__RULE_F32(name, most, ...)                                                             \
    CUP__WIDE static void name##_f32(float *values, const float *gradients, float *firsts,         \
                                     float *seconds, int64_t count, const cup__step_f32 *given)    \
    {                                                                                              \
        typedef float real;                                                                        \
        const cup__step_f32 n = *given;                                                            \
        if (most > 1 && seconds)                                                                   \
            CUP__RULE_LOOP(2, __VA_ARGS__)                                                         \
        else if (most > 0 && firsts)                                                               \
            CUP__RULE_LOOP(1, __VA_ARGS__)                                                         \
        else                                                                                       \
            CUP__RULE_LOOP(0, __VA_ARGS__)                                                         \
    }

#define CUP__RULE_UNPACKED(...) __VA_ARGS__
#define CUP__RULE_UPDATE(name, most, header, statements, ...)                                      \
    static const cup__update name##_update = {                                                     \
        .source = #name ".cu",                                                                     \
        .text = "#include \"" header "\"\n\nRULE\n{\n    " statements                              \
                "\n    return value;\n}\n\nUPDATE(" #name ")\n",                                   \
        .entry = #name "_step",                                                                    \
        .f64 = name##_f64,                                                                         \
        .f32 = name##_f32,                                                                         \
        .states = (most),                                                                          \
        __VA_ARGS__};
#define CUP__RULE(name, most, fields, ...)                                                         \
    CUP__RULE_F64(name, most, __VA_ARGS__)                                                         \
    CUP__RULE_F32(name, most, __VA_ARGS__)                                                         \
    CUP__RULE_UPDATE(name, most, "update.cuh", #__VA_ARGS__, CUP__RULE_UNPACKED fields)

/* The same with two states, in codes of 8 bits; the device rounds each operation, as the CPU. */
#define CUP__RULE_CODED(name, ...)                                                                 \
    CUP__RULE_F64(name, 2, __VA_ARGS__)                                                            \
    CUP__RULE_F32(name, 2, __VA_ARGS__)                                                            \
    CUP__RULE_UPDATE(name, 2, "update_coded.cuh", #__VA_ARGS__, .coded = true)

#endif
