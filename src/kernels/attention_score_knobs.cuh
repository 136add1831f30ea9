/* What may become of scores in a kernel of attention; without the knob it does not. */
#ifndef CUP_ATTENTION_SCORE_KNOBS_CUH
#define CUP_ATTENTION_SCORE_KNOBS_CUH

#ifndef SOFT_CAP
#define SOFT_CAP 0
#endif
#ifndef SLOPES
#define SLOPES 0
#endif
#ifndef SINKS
#define SINKS 0
#endif

#endif
