/* cupola/parameters.h: the list in which a model's tensors are made, by name. One list feeds the
 * optimizer, files and checkpoints:
 *
 *     cup_parameter_new(list, "weight", 2, (int64_t[]){8, 4},
 *                       CUP_OPTIONS(cup_parameter_options, .initializer = CUP_INITIALIZER_ZEROS));
 */
#ifndef CUPOLA_PARAMETERS_H
#define CUPOLA_PARAMETERS_H

#include "cupola/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the first values are drawn. `in` and `out` are what a number of the result is summed from
 * and what a number of the input goes to: of a matrix [out,in] its sizes, of more dimensions
 * [out,in,window..] those times the window. All but ZEROS, ONES, NORMAL and UNIFORM need at least
 * two dimensions. */
typedef enum cup_initializer {
    CUP_INITIALIZER_DEFAULT = 0, /* NORMAL; a layer may have another, which it names */
    CUP_INITIALIZER_NORMAL = 1,  /* deviation as given, or 0.02 */
    CUP_INITIALIZER_UNIFORM = 2, /* the same deviation: between -+ sqrt(3) deviation */
    /* Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural
     * networks": deviation gain sqrt(2 / (in + out)); uniform between -+ gain sqrt(6 / (in + out)).
     * Gain 1 where none is given. */
    CUP_INITIALIZER_XAVIER_NORMAL = 3,
    CUP_INITIALIZER_XAVIER_UNIFORM = 4,
    /* He, Zhang, Ren and Sun 2015, "Delving deep into rectifiers": deviation gain / sqrt(in);
     * uniform between -+ gain sqrt(3 / in). Gain sqrt(2), that of relu, where none is given. */
    CUP_INITIALIZER_KAIMING_NORMAL = 5,
    CUP_INITIALIZER_KAIMING_UNIFORM = 6,
    CUP_INITIALIZER_ZEROS = 7,
    CUP_INITIALIZER_ONES = 8,
    /* Saxe, McClelland and Ganguli 2014, "Exact solutions to the nonlinear dynamics of learning in
     * deep linear neural networks": a random matrix, each as likely as any other, whose rows (or
     * columns, where those are fewer) are orthogonal and have length gain, 1 where none is given.
     * Dimensions behind the first count as one. Made on the host, in time that grows as
     * the product of its sizes times the smaller of them. */
    CUP_INITIALIZER_ORTHOGONAL = 9,
    /* NORMAL, from the context's random numbers as they come (see cup_random_step), not from those
     * of the name: for models that have to begin as they did elsewhere. */
    CUP_INITIALIZER_NORMAL_IN_ORDER = 10
} cup_initializer;

/* What a process has of a parameter in a list that several share out: see cup_parameters_among. */
typedef enum cup_part {
    CUP_PART_WHOLE = 0,
    CUP_PART_ROWS = 1,   /* an equal part of its first dimension */
    CUP_PART_COLUMNS = 2, /* of its second */
    CUP_PART_EXPERTS = 3, /* of its first, in a list for cup_parameters_experts */
    /* Of matrices [experts,rows,columns] the same there, and in a list for cup_parameters_among of
     * the rows of each, or of its columns; sections are of these. */
    CUP_PART_EXPERTS_ROWS = 4,
    CUP_PART_EXPERTS_COLUMNS = 5
} cup_part;

/* What a parameter is. */
typedef struct cup_parameter_options {
    size_t size; /* of this struct, see CUP_OPTIONS */
    cup_initializer initializer;
    double deviation;  /* of NORMAL and UNIFORM */
    double gain;       /* of the others; 0: theirs */
    double rate;       /* multiplies the learning rate for it; 0: 1 */
    bool decay;        /* weight decay pulls at it */
    bool hidden;       /* a matrix between layers, not one of embeddings: Muon's */
    bool buffer;       /* saved and loaded, but not trained; ZEROS and ONES only, of any dtype */
    const char *dtype; /* its name, "f32"; NULL: the list's */
    int64_t rows;      /* of the first dimension, that count; those behind begin with zeros, and are
                          neither counted nor in files, as the rows of an embedding that only round
                          up its size. 0: all */
    cup_part part;
    /* The sizes of what stands one behind the other along the dimension of the part, as queries,
     * keys and values do: each is shared out by itself. All 0: it is one. */
    int64_t sections[3];
} cup_parameter_options;

/* A list of parameters, or the part of one under a prefix. */
typedef struct cup_parameters cup_parameters;

/* An empty list, whose tensors have the dtype unless they say otherwise: f32, f64, f16 or bf16.
 * Free it before the context, and behind the optimizers that were made of it; its tensors go with
 * it. */
CUP_API cup_parameters *cup_parameters_new(cup_context *c, cup_dtype dtype);
CUP_API void cup_parameters_free(cup_parameters *list);

/* The part of the list whose names begin with "PREFIX.", also those of tensors made later; what is
 * made in it gets the prefix in front of its name. Borrowed from the list, with which it goes;
 * freeing it does nothing. NULL or "" gives the list itself. */
CUP_API cup_parameters *cup_parameters_under(cup_parameters *list, const char *prefix);

/* Says, before anything is made in the list, that one model is shared out to the processes of m, as
 * tensor parallelism does: of what is made with a `part`, each process has the part that has its
 * number, and layers that are made in it are shared out so (cupola/layers.h). All of m make the
 * same. What is not shared out is the same on all. NULL and a communicator of one process change
 * nothing, so that the program of a model is the same for any number of processes. The loss that
 * all compute is one; their backward makes gradients of the sum of all their losses, so that of a
 * parameter which is not shared out the sum over m is the gradient times the number of processes:
 * cup_loop sees to that. Sums over m need the gradients of all, so all go backward together.
 * The list borrows m. CUP_STATE where something is in the list. */
CUP_API cup_status cup_parameters_among(cup_parameters *list, cup_comm *m);
/* That communicator; NULL where each process has the whole. */
CUP_API cup_comm *cup_parameters_comm(const cup_parameters *list);

/* Says, before anything is made in the list, that the processes of m, each of which has its own
 * batch, share out the experts of layers (expert parallelism, see cup_experts_layer): of what is
 * made with CUP_PART_EXPERTS each has the part that has its number, and all else whole. Rows go to
 * the experts and back between processes, so all make the same calls, with as many rows each, and
 * go backward together, which makes gradients of the sum of all their losses: a part's own, and of
 * what is whole what this process owes to its copy. Beside cup_parameters_among m is of whole
 * groups of those who share out the list, ranks that follow each other; each sends an equal part of
 * the rows that its group has, and layers give all of them. NULL and a communicator of one process
 * change nothing. The list borrows m. CUP_STATE where something is in the list, CUP_UNSUPPORTED
 * where groups are not whole. */
CUP_API cup_status cup_parameters_experts(cup_parameters *list, cup_comm *m);
/* That communicator; NULL where each process has all experts. */
CUP_API cup_comm *cup_parameters_experts_comm(const cup_parameters *list);

/* A new tensor of the list, which owns it, marked with cup_require_grad unless it is a buffer. Its
 * name is unique in the whole list, and parts of a name are joined by dots: "h.0.attn.weight".
 * The values depend on the context's seed, the whole name, the shape and the options only, not on
 * what else was made or drawn before; a GPU and a CPU draw the same numbers, but for the last bits
 * of logarithms and sines. The shape is that of the whole also where this process has a part, and
 * the part begins with the whole's values. */
CUP_API cup_tensor *cup_parameter_new(cup_parameters *list, const char *name, int ndim,
                                      const int64_t *shape, const cup_parameter_options *options);

/* Gives a tensor of the list a second name, as for output weights that are those of the embedding;
 * returns the tensor. It is counted, stepped and saved once, under its first name; under another
 * one only in a part of the list which the first is not in. */
CUP_API cup_tensor *cup_parameter_share(cup_parameters *list, const char *name,
                                        cup_tensor *tensor);

/* The tensor of that name, behind the list's prefix; NULL when there is none. */
CUP_API cup_tensor *cup_parameters_find(const cup_parameters *list, const char *name);

/* How many numbers the tensors of this process hold; only of those that are trained: no buffers,
 * nothing frozen. */
CUP_API int64_t cup_parameters_count(const cup_parameters *list, bool trained);

/* All tensors of the list with their whole names, buffers too, in the order they were made in: for
 * files and checkpoints. Borrowed, until the next call on the list. */
CUP_API const cup_named *cup_parameters_named(cup_parameters *list, int64_t *count);

/* From the next computation on the parameters of the list have no gradient, and every optimizer
 * leaves them as they are; or they are trained again. A tensor with several names is frozen with
 * any of them. An optimizer made of the list while they were frozen does not know them. */
CUP_API cup_status cup_parameters_freeze(cup_parameters *list);
CUP_API cup_status cup_parameters_unfreeze(cup_parameters *list);

/* Whether layers made in the list, or in any part of it, behave as in training: drop out, and take
 * the statistics of batches. It is on in a new list; returns what it was. Until backward is done
 * with a block of cup_recompute it must stay as it was when the block ran. */
CUP_API bool cup_parameters_training(cup_parameters *list, bool on);

/* Whether linear layers between others, those whose weight is hidden (see cup_parameter_options),
 * multiply in 8 bits, as cup_linear_fp8 does, while the list is in training; all else computes in
 * the dtype, and so do they in evaluation. It is for the whole list, whose dtype must be f32, bf16
 * or f16, and off in a new one; returns what it was. Until backward is done with a block of
 * cup_recompute it must stay as it was when the block ran. */
CUP_API bool cup_parameters_fp8(cup_parameters *list, bool on);

/* Whether processes that share out the list (cup_parameters_among) share out the tokens between its
 * blocks, too (sequence parallel): each norms and adds up its own part, and keeps that alone
 * for backward; attention and MLPs gather all before they begin, and again in backward, and what
 * they have parts of is added up to each process's own tokens. It is off in a new list, and changes
 * nothing of one that nobody shares out; returns what it was. Dropout of what blocks add is refused
 * meanwhile. Until backward is done with a block of cup_recompute it must stay as it was when the
 * block ran. */
CUP_API bool cup_parameters_sequence(cup_parameters *list, bool on);
/* What transformer layers of such a list are called with, and what they give: of x [B,T,width],
 * which all have, this process's rows as [1,R,width], of B T = R times the processes; and all of
 * them again. The next calls are of the B and T of the last x. x itself where rows are not shared
 * out. */
CUP_API cup_tensor *cup_parameters_rows_take(cup_parameters *list, cup_tensor *x);
CUP_API cup_tensor *cup_parameters_rows_join(cup_parameters *list, cup_tensor *x);

/* The processes whose batches are parts of one: in training, layers made in the list that take the
 * statistics of a batch, batchnorms, take those of all parts, and gradients of the sum of the
 * losses of all processes go through them. All make the same calls of such layers. Borrowed, and
 * of the list's context; NULL, as in a new list: each process's batch is its own. */
CUP_API cup_status cup_parameters_together(cup_parameters *list, cup_comm *m);

/* The processes each of which has a part of every sequence, as cup_comm_part takes it: attention in
 * layers made in the list then goes round between them, see cup_comm_attention, positions turn by
 * their places in the whole, dropout drops what one process would, see cup_comm_dropout, and all
 * else stays with its own tokens. All make the same calls. Borrowed, and of the list's
 * context; NULL, as in a new list: each process has whole sequences. Until backward is done with a
 * block of cup_recompute it must stay as it was when the block ran. */
CUP_API cup_status cup_parameters_ring(cup_parameters *list, cup_comm *m);
/* That communicator; NULL where sequences are whole. */
CUP_API cup_comm *cup_parameters_ring_comm(const cup_parameters *list);

/* Says where documents lie one behind the other in the sequences that layers made in the list get
 * from here on: attention of a position then sees its own document alone. `ends`, i32 or i64 [N],
 * or [B,N] of B sequences, are the positions before which they end, as query_offsets of
 * cup_attention; borrowed; NULL, as in a new list: each sequence is one. Returns what it was. Parts
 * of sequences on several processes (cup_parameters_ring) do not know of them. A block of
 * cup_recompute says so itself, each time it runs. */
CUP_API cup_tensor *cup_parameters_documents(cup_parameters *list, cup_tensor *ends);

/* An optimizer of all parameters of the list that are trained, with their decay, rate and hidden;
 * see cup_optimizer_new. Fails where there is none. */
CUP_API cup_optimizer *cup_optimizer_of(cup_parameters *list, const cup_optimizer_options *options);

/* Writes the tensors of the list, buffers too, into a safetensors file; see
 * cup_safetensors_save. CUP_UNSUPPORTED, here and below, where processes share out the list. */
CUP_API cup_status cup_parameters_save(cup_parameters *list, const char *path);

/* Reads them again. The file must hold each of them with its shape and dtype, and nothing else
 * that has the list's prefix; otherwise the sentence names what is missing, superfluous or
 * different, and nothing was changed. */
CUP_API cup_status cup_parameters_load(cup_parameters *list, const char *path);

#ifdef __cplusplus
}
#endif
#endif
