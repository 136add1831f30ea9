# bash completion for cupola, written by make gen from the tables in cli/
_cupola()
{
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} words=
    if [ "$COMP_CWORD" -eq 1 ]; then
        words='info ops check bench help --version'
    else
    case $verb:$before in
    bench:--dtype) words='f32 f64 f16 bf16' ;;
    *:--color) words='auto always never' ;;
    *) [[ $word == -* ]] && case $verb in
        info) words=' --searched --json --color --help' ;;
        ops) words=' --json --color --help' ;;
        check) words=' --op --device --json --color --help' ;;
        bench) words=' --op --device --dtype --shapes --impl --seconds --json --color --help' ;;
        esac ;;
    esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _cupola cupola
