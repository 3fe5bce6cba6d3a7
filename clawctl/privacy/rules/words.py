"""Words: those that announce a secret, those that stand where one would, and those that announce an id."""

import re


def _words(text: str) -> list[str]:
    return text.split()


# The last word of a name says what its value is. A `·` is a space within a word.
_PASSWORD_WORDS = _words("""
password passwords passwd passphrase passcode passwort passworte passord passordet pass pswd pwd passwrd passw psk kennwort
kennwortes zugangscode passe mdp motdepasse contraseña contrasena contrasenya clave claves senha senhas palavra-passe
wachtwoord wachtwoorden hasło haslo hasla parola parolă parole parolei heslo hesla salasana adgangskode adgangskoden kodeord
kodeordet jelszó jelszo jelszava lozinka geslo lösenord losenord lösenordet losenordet slaptažodis slaptazodis parool
pasahitza şifre sifre şifresi şifrem sifrem şifreniz mật·khẩu mat·khau kata·sandi kata·laluan sandi пароль пароля паролем
пароли паролю парола лозинка κωδικός κωδικος συνθηματικό סיסמה סיסמא הסיסמה كلمة·المرور كلمة·السر رمز·عبور گذرواژه पासवर्ड
รหัสผ่าน パスワード 暗証番号 パスコード パスフレーズ 密码 密碼 口令 비밀번호 암호 패스워드 비번
""")
KEY_WORDS = _words("""
secret secrets token tokens credential credentials key keys auth apikey authkey accesskey secretkey appsecret bearer schlüssel
schluessel geheimnis geheim clé jeton chave llave chiave ключ ключа токен токена секрет 密钥 密鑰 令牌 キー トークン シークレット
토큰 키
""")
LONGEST_FIRST = sorted({word.replace("·", " ") for word in _PASSWORD_WORDS}, key=len, reverse=True)
KEYS_LONGEST_FIRST = sorted(KEY_WORDS, key=len, reverse=True)

# What is looked for in a text in lower case. Of a word in ASCII its beginning is enough.
ANCHORS = tuple(
    _words("""
pass pswd pwd psk secret token credential key auth kennwort zugangscode mdp contrase clave senha wachtwoord hasl parol heslo
hesla salasana adgangskode kodeord jelsz lozinka geslo losenord slapta pasahitza sifre kata sandi laluan mat khau schluessel
geheim jeton chave llave chiave
""")
)
ANCHORS_BEYOND = tuple(
    dict.fromkeys(
        re.sub(r"(?<=.{4}).*", "", word.replace("·", " ")) for word in (*_PASSWORD_WORDS, *KEY_WORDS) if not word.isascii()
    )
)

# Words of one language that are words of another need a border before them.
SHORT = frozenset(
    _words("""
pass passe clave claves parole sandi geslo parola mdp pwd senha heslo passw psk auth key keys
""")
)

# What stands where a secret would.
PLACEHOLDERS = frozenset(
    (
        *_words("""
password passwd passphrase pass pwd secret token key apikey api_key string str text none null nil true false undefined
required optional hidden changeme change_me change-me example placeholder redacted unknown empty todo tbd yes no bool int bytes
object value default wrong incorrect invalid correct expired missing weak strong reset protected encrypted hashed stored saved
root admin user username test guest postgres login foo bar dummy sample mypassword yourpassword secretref not only never always
self cls this that kwargs args type number integer boolean any char varchar optional[str] public private const function
"""),
        *LONGEST_FIRST,
        *KEY_WORDS,
    )
)

# What stands before an id that looks like a key, and before a key.
IDS = frozenset(
    _words("""
acct agent app art assistant asst ba batch bitnami blob blobs branch build bundle ca call card cas ch chat chatcmpl checkpoint
chunk cid class client cluster cmpl col commit component container conv conversation correlation cri cs css ctr cus customer
data deploy deployment dev digest doc docker dp emb embed emotion err error etag event evt exp experiment fc file fingerprint
font fp ft ftjob gen git group hash id ids image img in index inv invoice item job js jsx kube layer link log main manifest
md5 message model module msg node nonce object obj order org page part pi pip pkg plan pm po pod pr price proc process prod
product proj project py rec ref reference release replicaset req request res resource resp response result rev revision rs run
runs sc script sess session set seti sha sha1 sha256 sha384 sha512 shard si sig snap span src step style sub subnet svc svelte
tag task tbl team test tests thread tmp toolu tool tr trace track transaction ts txn upload user usr uuid v1 v2 v3 vec vendor
ver version vm vol volume vs web worker workspace ws blake2 blake3 md integrity
""")
)
KEY_PARTS = frozenset(_words("ak api apikey auth key keys lic license pat sdk sec secret sk tok token"))
