# bash completion for cupola, written by make gen from the tables in cli/
_cupola()
{
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} words=
    if [ "$COMP_CWORD" -eq 1 ]; then
        words='train plan tokenize launch generate classify export info ops check bench tune kernels help --version'
    else
    case $verb:$before in
    train:--order) words='random permuted' ;;
    train:--task) words='text classify' ;;
    train:--preset) words='char demo gpt2-124m gpt2-350m gpt2-774m gpt2-1558m mlp cnn resnet18 resnet50 vit-s convnext-t' ;;
    train:--dtype) words='f32 bf16 f16' ;;
    train:--precision) words='highest high medium fp8' ;;
    train:--non-finite) words='stop skip' ;;
    train:--flip) words='yes no' ;;
    train:--positions) words='learned rotary alibi' ;;
    train:--norm) words='layernorm rmsnorm' ;;
    train:--mlp) words='gelu swiglu' ;;
    train:--bias) words='yes no qkv' ;;
    train:--decline) words='cosine linear constant root' ;;
    train:--optimizer) words='adamw sgd lion muon adam rmsprop adagrad adamw8' ;;
    train:--recompute) words='none norms pointwise block auto' ;;
    plan:--preset) words='char demo gpt2-124m gpt2-350m gpt2-774m gpt2-1558m' ;;
    plan:--dtype) words='f32 bf16 f16' ;;
    plan:--precision) words='highest high medium fp8' ;;
    plan:--positions) words='learned rotary alibi' ;;
    plan:--norm) words='layernorm rmsnorm' ;;
    plan:--mlp) words='gelu swiglu' ;;
    plan:--bias) words='yes no qkv' ;;
    plan:--decline) words='cosine linear constant root' ;;
    plan:--optimizer) words='adamw sgd lion muon adam rmsprop adagrad adamw8' ;;
    plan:--recompute) words='none norms pointwise block auto' ;;
    tokenize:--format) words='llmc nanogpt' ;;
    generate:--cache-dtype) words='f8e4m3 f8e5m2 i8' ;;
    bench:--dtype) words='f32 f64 f16 bf16 i8 f8e4m3 f8e5m2' ;;
    bench:--precision) words='highest high medium' ;;
    bench:--format) words='text json csv tsv html markdown' ;;
    tune:--dtype) words='f32 f64 f16 bf16 i8 f8e4m3 f8e5m2' ;;
    *:--color) words='auto always never' ;;
    *) [[ $word == -* ]] && case $verb in
        train) words=' --data --weights --order --out --from --resume --overwrite --task --preset --device --dtype --precision --tune --gpus --processes --restarts --parallel --sequence-parallel --stages --interleave --zero --threads --deterministic --memory-limit --memory-share --memory-page --tensorboard --non-finite --seed --sample --text-limit --text-field --tokenizer --vocabulary --epochs --network --image-size --grey --skip-broken --as-needed --flip --crop --rotate --scale --recolor --erase --mixup --label-smoothing --layers --heads --kv-heads --head-size --qk-norm --width --hidden --context --window --positions --soft-cap --logits-cap --sinks --documents --norm --mlp --experts --experts-per-token --balance --router-z --capacity --bias --untied --dropout --lora --lora-scale --steps --batch --accumulate --lr --lr-end --warmup --decline --decline-steps --optimizer --beta1 --beta2 --momentum --weight-decay --decay-groups --clip --loss-scale --ema --stochastic --optimizer-offload --recompute --recompute-blocks --logits-memory --evaluate-every --evaluate-texts --save-every --save-background --check-every --json --color --help' ;;
        plan) words=' --card --preset --from --dtype --precision --vocabulary --memory-limit --ops --gpus --nodes --texts --parallel --interleave --zero --sequence-parallel --network --link --layers --heads --kv-heads --head-size --qk-norm --width --hidden --context --window --positions --soft-cap --logits-cap --sinks --documents --norm --mlp --experts --experts-per-token --balance --router-z --capacity --bias --untied --dropout --lora --lora-scale --steps --batch --accumulate --lr --lr-end --warmup --decline --decline-steps --optimizer --beta1 --beta2 --momentum --weight-decay --decay-groups --clip --loss-scale --ema --stochastic --optimizer-offload --recompute --recompute-blocks --logits-memory --json --color --help' ;;
        tokenize) words=' --data --tokenizer --learn --vocabulary --words --out --format --validation --text-field --shard-tokens --threads --json --color --help' ;;
        launch) words=' --processes --restarts --json --color --help' ;;
        generate) words=' --from --adapters --ema --prompt --no-echo --tokens --texts --temperature --top-k --top-p --seed --cache-dtype --device --threads --json --color --help' ;;
        classify) words=' --from --data --page --ema --skip-broken --device --threads --json --color --help' ;;
        export) words=' --from --out --ema --adapters --merge --part-size --device --json --color --help' ;;
        info) words=' --searched --json --color --help' ;;
        ops) words=' --json --color --help' ;;
        check) words=' --op --device --random --kernels --small --precision --from --repeat --graphs --gradients --gradient --graph --seed --json --color --help' ;;
        bench) words=' --op --device --dtype --shapes --attributes --indices --precision --transposed --channels-last --impl --chosen --seconds --no-error --format --from --peers --goals --part --rest --against --compare --noise --json --color --help' ;;
        tune) words=' --op --shapes --attributes --dtype --channels-last --device --merge --to --json --color --help' ;;
        kernels) words=' --arch --op --common --pack --threads --json --color --help' ;;
        esac ;;
    esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _cupola cupola
