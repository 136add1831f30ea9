/* Connectionist temporal classification: a block a sequence, whose threads share the states, blanks
 * with the targets between them, of a step at a time; all in logarithms, whose sums over the steps
 * grow with them and so are doubles, while what a step adds is of the dtype.
 *
 * ctc_fwd: alpha, how probable it is to be in a state with all that came up to a step. ctc_bwd: the
 * same from the end, beta, and the share of each class in each step, summed in a fixed order: the
 * blanks by the block, the others by whoever has a class' first target. Grid: a block a sequence.
 * Bytes: alpha and what is named of the log-probabilities once. */
#include "ctc_call.cuh"
#include "reduce.cuh"

/* Knobs: CUP_T, TARGET, INPUT_LENGTH, TARGET_LENGTH (dtypes of what names places). */
#define THREADS CTC_THREADS

typedef dtype_of<TARGET>::type target_type;
typedef dtype_of<INPUT_LENGTH>::type input_length_type;
typedef dtype_of<TARGET_LENGTH>::type target_length_type;

struct sequence {
    const T *log_probs;         /* its row of the first step; others are `stride` on */
    const target_type *targets;
    T *alpha;                   /* a row of `width` for each step */
    double *rows;               /* two steps' alpha or beta, and shares */
    int64_t stride, steps, length, states, width;
    int blank;
};

DEVICE double nothing()
{
    return -(double)__int_as_float(0x7f800000);
}

DEVICE sequence sequence_of(const ctc_call &c)
{
    int64_t n = blockIdx.x;
    sequence s;
    s.log_probs = (const T *)c.log_probs + n * c.classes;
    s.targets = (const target_type *)c.targets + n * c.most;
    s.stride = c.batch * c.classes;
    s.steps = ((const input_length_type *)c.input_lengths)[n];
    s.length = ((const target_length_type *)c.target_lengths)[n];
    s.states = 2 * s.length + 1;
    s.width = 2 * c.most + 1;
    s.alpha = (T *)c.alpha + n * c.steps * s.width;
    s.rows = (double *)c.work + n * 3 * s.width;
    s.blank = c.blank;
    return s;
}

/* Whether lengths and targets are such as can be. All threads must call. */
DEVICE bool is_good(const ctc_call &c, const sequence &s)
{
    bool good = s.steps >= 0 && s.steps <= c.steps && s.length >= 0 && s.length <= c.most;
    for (int64_t i = threadIdx.x; good && i < s.length; i += THREADS)
        good = s.targets[i] >= 0 && s.targets[i] < c.classes;
    return __syncthreads_and(good);
}

DEVICE int64_t class_of(const sequence &s, int64_t state)
{
    return state % 2 ? (int64_t)s.targets[state / 2] : (int64_t)s.blank;
}

/* Whether a state may come right after the one two before it. */
DEVICE bool skips(const sequence &s, int64_t state)
{
    return state % 2 && state > 1 && s.targets[state / 2] != s.targets[state / 2 - 1];
}

DEVICE double joined(double a, double b, double c)
{
    double most = fmax(a, fmax(b, c));
    if (!(most > nothing()))
        return a + b + c; /* nothing, or NaN */
    return most + (double)log(exp((T)(a - most)) + exp((T)(b - most)) + exp((T)(c - most)));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ctc_fwd(const __grid_constant__ ctc_call c)
{
    sequence s = sequence_of(c);
    T *loss = (T *)c.loss + blockIdx.x;
    bool good = is_good(c, s);
    for (int64_t i = threadIdx.x; i < c.steps * s.width; i += THREADS)
        s.alpha[i] = (T)nothing();
    __syncthreads();
    if (!good || s.steps == 0) {
        if (threadIdx.x == 0)
            *loss = !good ? (T)(0.0f / 0.0f) : s.length ? (T)-nothing() : (T)0;
        return;
    }
    for (int64_t t = 0; t < s.steps; t++) {
        double *now = s.rows + t % 2 * s.width, *before = s.rows + (t + 1) % 2 * s.width;
        const T *row = s.log_probs + t * s.stride;
        for (int64_t i = threadIdx.x; i < s.states; i += THREADS) {
            double from = i < 2 ? 0 : nothing();
            if (t)
                from = joined(before[i], i ? before[i - 1] : nothing(),
                              skips(s, i) ? before[i - 2] : nothing());
            now[i] = from + (double)row[class_of(s, i)];
            s.alpha[t * s.width + i] = (T)now[i];
        }
        __syncthreads();
    }
    const double *last = s.rows + (s.steps - 1) % 2 * s.width + s.states - 1;
    if (threadIdx.x == 0)
        *loss = (T)-joined(last[0], s.length ? last[-1] : nothing(), nothing());
}

/* For each target the next one of its class, and whether there is none before it. */
DEVICE void link_targets(const sequence &s, int *next, int *first)
{
    for (int64_t i = threadIdx.x; i < s.length; i += THREADS) {
        int64_t after = i + 1, before = i;
        while (after < s.length && s.targets[after] != s.targets[i])
            after++;
        while (before > 0 && s.targets[before - 1] != s.targets[i])
            before--;
        next[i] = after < s.length ? (int)after : -1;
        first[i] = before == 0 && s.targets[i] != s.blank;
    }
}

/* Beta of a step into `now`, of the step behind it in `then`, and each state's share. */
DEVICE void step_back(const sequence &s, int64_t t, const double *then, double *now, double *share,
                      T loss)
{
    const T *row = s.log_probs + t * s.stride, *alpha = s.alpha + t * s.width;
    for (int64_t i = threadIdx.x; i < s.states; i += THREADS) {
        double from = i + 2 >= s.states ? 0 : nothing();
        if (t + 1 < s.steps)
            from = joined(then[i], i + 1 < s.states ? then[i + 1] : nothing(),
                          i + 2 < s.states && skips(s, i + 2) ? then[i + 2] : nothing());
        now[i] = from + (double)row[class_of(s, i)];
        double together = (double)alpha[i] + from;
        share[i] = together > nothing() ? (double)exp((T)(together + (double)loss)) : 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ctc_bwd(const __grid_constant__ ctc_call c)
{
    sequence s = sequence_of(c);
    T loss = ((const T *)c.loss)[blockIdx.x], dloss = ((const T *)c.dloss)[blockIdx.x];
    T *slopes = (T *)c.dlog_probs + blockIdx.x * c.classes;
    double *share = s.rows + 2 * s.width;
    int *next = c.next + blockIdx.x * 2 * c.most, *first = next + c.most;
    bool counts = is_good(c, s) && loss < (T)-nothing();
    T rest = loss == loss ? (T)0 : loss;
    for (int64_t t = counts ? s.steps : 0; t < c.steps; t++)
        for (int64_t i = threadIdx.x; i < c.classes; i += THREADS)
            slopes[t * s.stride + i] = rest;
    if (!counts)
        return;
    link_targets(s, next, first);
    for (int64_t t = s.steps - 1; t >= 0; t--) {
        double *now = s.rows + t % 2 * s.width, blanks = 0;
        T *row = slopes + t * s.stride;
        step_back(s, t, s.rows + (t + 1) % 2 * s.width, now, share, loss);
        for (int64_t i = threadIdx.x; i < c.classes; i += THREADS)
            row[i] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < s.states; i += THREADS)
            if (class_of(s, i) == s.blank)
                blanks += share[i];
        for (int64_t i = threadIdx.x; i < s.length; i += THREADS) {
            double sum = 0;
            for (int at = first[i] ? (int)i : -1; at >= 0; at = next[at])
                sum += share[2 * at + 1];
            if (first[i])
                row[s.targets[i]] = -dloss * (T)sum;
        }
        blanks = block_sum(blanks);
        if (threadIdx.x == 0)
            row[s.blank] = -dloss * (T)blanks;
    }
}
